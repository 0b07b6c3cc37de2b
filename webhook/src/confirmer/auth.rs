//! Who asks: a waiter's projected token, verified locally against the API server's published keys.
//!
//! No `TokenReview`: that would cost the API server a call per pod, and would refuse the token of a pod whose
//! ServiceAccount was deleted first (namespace deletion) or while the API server is down.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use kube::Client;
use serde::Deserialize;
use sidecar::contract::TOKEN_AUDIENCE;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::error_chain::chain;
use crate::readiness::BlockReady;

/// Least time between two fetches of the keys, so that forged key ids can't make us flood the API server.
const REFRESH_PAUSE: Duration = Duration::from_secs(10);
/// How often the keys are fetched though nothing asks for it.
const REFRESH_EVERY: Duration = Duration::from_mins(10);
/// Longest wait for the API server's answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// The pod that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Why a token was refused. The caller is told no more than that it was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no bearer token.
    #[error("no bearer token")]
    Missing,
    /// The token's key isn't among the API server's.
    #[error("unknown key id {0:?}")]
    UnknownKey(Option<String>),
    /// Signature, issuer, audience or time don't hold.
    #[error("invalid token")]
    Invalid(#[source] jsonwebtoken::errors::Error),
    /// A valid token, but not one that the kubelet asked for a pod.
    #[error("token is not bound to a pod")]
    NotBound,
    /// No keys were fetched yet.
    #[error("the API server's keys are not known yet")]
    NoKeys(#[source] Option<Box<FetchError>>),
}

/// Why the API server's keys couldn't be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The API server didn't answer, or refused.
    #[error("failed to read {path} from the API server")]
    Api {
        /// What was asked for.
        path: &'static str,
        /// Why it failed.
        #[source]
        source: kube::Error,
    },
    /// The answer has no key that we could use.
    #[error("the API server publishes no RSA or EC key")]
    NoKeys,
    /// The answer isn't what it should be.
    #[error("failed to decode {path} of the API server")]
    Decode {
        /// What was asked for.
        path: &'static str,
        /// Why it failed.
        #[source]
        source: serde_json::Error,
    },
}

/// The keys that the API server signs tokens with.
#[derive(Default)]
pub struct Keys {
    issuer: String,
    by_id: HashMap<Option<String>, (Algorithm, DecodingKey)>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("issuer", &self.issuer)
            .field("ids", &self.by_id.keys())
            .finish()
    }
}

#[derive(Deserialize)]
struct Claims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Binding>,
}

#[derive(Deserialize)]
struct Binding {
    namespace: String,
    pod: Option<Bound>,
}

#[derive(Deserialize)]
struct Bound {
    name: String,
    uid: String,
}

impl Keys {
    /// Reads a JSON Web Key Set. A key of a kind that we don't know is passed over, the others still count.
    ///
    /// # Errors
    /// Where the set itself is no JSON of that shape.
    pub fn parse(issuer: String, jwks: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set = serde_json::from_str(jwks)?;
        let by_id = set
            .keys
            .into_iter()
            .filter_map(|value| serde_json::from_value::<Jwk>(value).ok())
            .filter_map(|jwk| {
                Some((
                    jwk.common.key_id.clone(),
                    (algorithm(&jwk)?, DecodingKey::from_jwk(&jwk).ok()?),
                ))
            })
            .collect();
        Ok(Self { issuer, by_id })
    }

    /// Verifies signature, issuer, audience and times; the pod comes from the token alone.
    ///
    /// # Errors
    /// [`Error`], by the first check that fails.
    pub fn verify(&self, token: &str) -> Result<PodIdentity, Error> {
        let header = decode_header(token).map_err(Error::Invalid)?;
        let Some((algorithm, key)) = self.by_id.get(&header.kid) else {
            return Err(Error::UnknownKey(header.kid));
        };
        // The algorithm is the key's, never the token's: "none" and a public key used as an HMAC secret fail here.
        let mut validation = Validation::new(*algorithm);
        validation.set_audience(&[TOKEN_AUDIENCE]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        let claims = decode::<Claims>(token, key, &validation)
            .map_err(Error::Invalid)?
            .claims;
        let binding = claims.kubernetes.ok_or(Error::NotBound)?;
        let pod = binding.pod.ok_or(Error::NotBound)?;
        Ok(PodIdentity {
            namespace: binding.namespace,
            name: pod.name,
            uid: pod.uid,
        })
    }
}

/// The asymmetric algorithm of a key, by its `alg` or by its kind; `None` for anything symmetric or unknown.
fn algorithm(jwk: &Jwk) -> Option<Algorithm> {
    match (jwk.common.key_algorithm, &jwk.algorithm) {
        (Some(KeyAlgorithm::RS256) | None, AlgorithmParameters::RSA(_)) => Some(Algorithm::RS256),
        (Some(KeyAlgorithm::RS384), AlgorithmParameters::RSA(_)) => Some(Algorithm::RS384),
        (Some(KeyAlgorithm::RS512), AlgorithmParameters::RSA(_)) => Some(Algorithm::RS512),
        (_, AlgorithmParameters::EllipticCurve(ec)) => match ec.curve {
            EllipticCurve::P256 => Some(Algorithm::ES256),
            EllipticCurve::P384 => Some(Algorithm::ES384),
            _ => None,
        },
        _ => None,
    }
}

/// Verifies tokens and keeps the keys fresh; shared by all requests.
pub struct Verifier {
    client: Client,
    keys: ArcSwap<Keys>,
    /// When the keys were last asked for: one fetch at a time.
    fetched: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier")
            .field("keys", &self.keys)
            .finish_non_exhaustive()
    }
}

impl Verifier {
    /// A verifier that has no keys yet: [`Self::refresh`] fetches them.
    pub fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            keys: ArcSwap::default(),
            fetched: Mutex::default(),
        })
    }

    /// Verifies; an unknown key id makes us ask for the keys once more, since the API server may have rotated them.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn verify(&self, token: &str) -> Result<PodIdentity, Error> {
        let keys = self.keys.load_full();
        match keys.verify(token) {
            Err(Error::UnknownKey(id)) => {
                let fetched = self.refresh().await;
                let renewed = self.keys.load_full();
                if renewed.by_id.is_empty() {
                    return Err(Error::NoKeys(fetched.err().map(Box::new)));
                }
                if Arc::ptr_eq(&keys, &renewed) {
                    Err(Error::UnknownKey(id))
                } else {
                    renewed.verify(token)
                }
            }
            result => result,
        }
    }

    /// Keeps the keys fresh until dropped; `ready` is released with the first.
    ///
    /// A key that the API server no longer publishes goes within ten minutes; a new one is fetched when first met.
    pub async fn keep(&self, ready: BlockReady) {
        while self.refresh().await.is_err() {
            sleep(REFRESH_PAUSE).await;
        }
        drop(ready);
        loop {
            sleep(REFRESH_EVERY).await;
            // The keys that are there stay, and a failure is logged by `refresh`.
            let _ = self.refresh().await;
        }
    }

    /// Fetches the keys, unless that was done within the last ten seconds.
    ///
    /// # Errors
    /// [`FetchError`]; the keys that are there stay.
    pub async fn refresh(&self) -> Result<(), FetchError> {
        let mut fetched = self.fetched.lock().await;
        if fetched.is_some_and(|at| at.elapsed() < REFRESH_PAUSE) {
            return Ok(());
        }
        let result = self.fetch().await;
        *fetched = Some(Instant::now());
        match &result {
            Ok(keys) => info!(
                issuer = keys.issuer,
                keys = keys.by_id.len(),
                "Fetched the API server's token keys"
            ),
            Err(error) => {
                warn!(
                    error = chain(error),
                    "Failed to fetch the API server's token keys"
                );
            }
        }
        self.keys.store(Arc::new(result?));
        Ok(())
    }

    async fn fetch(&self) -> Result<Keys, FetchError> {
        const CONFIGURATION: &str = "/.well-known/openid-configuration";
        const JWKS: &str = "/openid/v1/jwks";
        #[derive(Deserialize)]
        struct Configuration {
            issuer: String,
        }
        let text = self.read(CONFIGURATION).await?;
        let configuration: Configuration =
            serde_json::from_str(&text).map_err(|source| FetchError::Decode {
                path: CONFIGURATION,
                source,
            })?;
        let jwks = self.read(JWKS).await?;
        let keys = Keys::parse(configuration.issuer, &jwks)
            .map_err(|source| FetchError::Decode { path: JWKS, source })?;
        if keys.by_id.is_empty() {
            Err(FetchError::NoKeys)
        } else {
            Ok(keys)
        }
    }

    async fn read(&self, path: &'static str) -> Result<String, FetchError> {
        let call = async {
            let request = http::Request::get(path)
                .body(Vec::new())
                .map_err(kube::Error::HttpError)?;
            self.client.request_text(request).await
        };
        let answer = timeout(FETCH_TIMEOUT, call)
            .await
            .unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())));
        answer.map_err(|source| FetchError::Api { path, source })
    }
}

#[cfg(test)]
mod tests;
