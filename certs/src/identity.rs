//! An authority and its leaf as they are stored, and whether a TLS client would accept them.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::authority::{self, Authority, AuthorityCert};
use crate::key_pair::KeyPairPem;
use crate::validity::Validity;

/// Why a stored identity can't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The authority can't be read.
    #[error("failed to read the authority")]
    Authority(#[source] authority::Error),
    /// The authority's time is over.
    #[error("failed to use the authority: it has expired")]
    AuthorityExpired,
    /// The previous authority can't be read.
    #[error("failed to read the previous authority")]
    PreviousAuthority(#[source] authority::Error),
    /// The leaf or its key is no PEM.
    #[error("failed to parse the leaf's {what}")]
    Pem {
        /// `certificate` or `private key`.
        what: &'static str,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The leaf isn't X.509 as we need it.
    #[error("failed to read the leaf's certificate: {0}")]
    Certificate(String),
    /// The key is of an unknown kind, or another certificate's.
    #[error("failed to match the leaf's private key with its certificate")]
    Key(#[source] rustls::Error),
    /// A client that trusts the authority would refuse the leaf.
    #[error("failed to verify the leaf against the authority")]
    Chain(#[source] rustls::Error),
    /// The leaf lacks a name under which it is called.
    #[error("failed to find the name {0:?} in the leaf")]
    Name(String),
}

/// An authority, its current leaf and, while clients still trust only that, the authority before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The authority.
    pub authority: KeyPairPem,
    /// The leaf that it issued.
    pub leaf: KeyPairPem,
    /// Certificate of the authority before, PEM: still to be trusted.
    pub previous_authority: Option<String>,
}

/// An identity that a client accepts: what is served, and what clients must be given to accept it.
#[derive(Debug, Clone)]
pub struct Verified {
    /// The authority's key identifier, see [`Authority::key_id`].
    pub key_id: String,
    /// What clients must trust: the certificates of the authority and of the one before, PEM.
    pub trust_pem: String,
    /// The authority's time.
    pub authority: Validity,
    /// The leaf's time.
    pub leaf: Validity,
    pub(crate) certified_key: Arc<CertifiedKey>,
}

impl Identity {
    /// Makes a new authority and its first leaf; `names` gets the authority's key identifier.
    ///
    /// # Errors
    /// See [`Authority::create`] and [`Authority::issue_leaf`].
    pub fn create(policy: &crate::Policy, now: SystemTime) -> Result<Self, authority::Error> {
        let authority = Authority::create(policy.common_name, policy.lives.authority, now)?;
        Ok(Self {
            leaf: authority.issue_leaf(
                &(policy.names)(authority.key_id()),
                policy.lives.leaf,
                now,
            )?,
            authority: authority.pem().clone(),
            previous_authority: None,
        })
    }

    /// Checks all that a client would check at `now`, and that the leaf has every name of `names` (which gets the
    /// authority's key identifier).
    ///
    /// # Errors
    /// The first thing found wrong.
    pub fn verify(
        &self,
        names: fn(&str) -> Vec<String>,
        now: SystemTime,
    ) -> Result<Verified, Error> {
        let authority = Authority::from_pem(&self.authority).map_err(Error::Authority)?;
        // Rust's verifier doesn't look at the time of a trust anchor, Go's (the API server's) does.
        if authority.validity().is_expired(now) {
            return Err(Error::AuthorityExpired);
        }
        let mut trust_pem = format!("{}\n", self.authority.cert.trim());
        if let Some(previous) = &self.previous_authority {
            AuthorityCert::from_pem(previous, "the previous authority's certificate")
                .map_err(Error::PreviousAuthority)?;
            trust_pem.push_str(previous.trim());
            trust_pem.push('\n');
        }
        let certified_key = Arc::new(certify(&self.leaf)?);
        let chain = certified_key.cert.as_slice();
        let leaf = check_leaf(chain, &self.authority.cert, &names(authority.key_id()), now)?;
        Ok(Verified {
            key_id: authority.key_id().to_owned(),
            trust_pem,
            authority: authority.validity(),
            leaf,
            certified_key,
        })
    }
}

/// The leaf's chain with its key, checked to belong together.
fn certify(leaf: &KeyPairPem) -> Result<CertifiedKey, Error> {
    let broken = |what| move |source| Error::Pem { what, source };
    let chain = CertificateDer::pem_slice_iter(leaf.cert.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(broken("certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(broken("private key"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(Error::Key)
}

/// What a client does with the leaf at `now`; its validity.
fn check_leaf(
    chain: &[CertificateDer<'_>],
    authority: &str,
    names: &[String],
    now: SystemTime,
) -> Result<Validity, Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(Error::Certificate("there is none".to_owned()));
    };
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(authority.as_bytes()).flatten() {
        roots.add(root).map_err(Error::Chain)?;
    }
    let now = UnixTime::since_unix_epoch(
        now.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    );
    let parsed = ParsedCertificate::try_from(leaf).map_err(Error::Chain)?;
    let algorithms = ring::default_provider()
        .signature_verification_algorithms
        .all;
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)
        .map_err(Error::Chain)?;
    for name in names {
        ServerName::try_from(name.as_str())
            .ok()
            .and_then(|server_name| verify_server_name(&parsed, &server_name).ok())
            .ok_or_else(|| Error::Name(name.clone()))?;
    }
    let (_, x509) =
        X509Certificate::from_der(leaf).map_err(|error| Error::Certificate(error.to_string()))?;
    authority::read_validity(&x509)
        .ok_or_else(|| Error::Certificate("its time is beyond what a clock can tell".to_owned()))
}

#[cfg(test)]
mod tests;
