//! SDK clients: one per region and role, made when a group first needs it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::imds;
use aws_config::meta::region::{ProvideRegion, RegionProviderChain};
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::config::Builder;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::whole::WholeAnswers;
use crate::confirmer::target_group::{Failure, GroupId, Role, TargetGroup};

/// Longest TCP and TLS handshake. One round trip within a region is a millisecond.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for a metadata service on the node. Where packets to it are dropped (hop limit 1), two attempts of
/// this still end within a call.
const IMDS_TIMEOUT: Duration = Duration::from_secs(1);

/// Attempts at the metadata service.
const IMDS_ATTEMPTS: u32 = 2;

/// Session name of assumed roles, as `CloudTrail` shows it.
const SESSION_NAME: &str = "prestop-gate";

/// Said where a target group that is known by name alone can't be looked for.
const NO_REGION: &str = "no AWS region is known: set AWS_REGION in the prestop-gate Deployment";

/// Makes SDK clients, and keeps them.
pub(super) struct Sessions {
    pub(super) http: SharedHttpClient,
    /// Settings, fresh for each region: the SDK's loader can be used once.
    pub(super) settings: Box<dyn Fn() -> ConfigLoader + Send + Sync>,
    /// Our own region.
    pub(super) region: Box<dyn ProvideRegion>,
    /// Our own credentials; `None`: the SDK's default chain.
    pub(super) credentials: Option<SharedCredentialsProvider>,
    clients: Mutex<HashMap<(Region, Option<Role>), Client>>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Sessions {
    /// Does no I/O but reading the machine's root certificates.
    pub(super) fn from_environment() -> Self {
        let http = http_client();
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
            .or_else(ProfileFileRegionProvider::new())
            .or_else(
                imds::region::ImdsRegionProvider::builder()
                    .imds_client(imds_client(&http))
                    .build(),
            );
        Self::new(
            http,
            || aws_config::defaults(BehaviorVersion::latest()),
            region,
            None,
        )
    }

    pub(super) fn new(
        http: SharedHttpClient,
        settings: impl Fn() -> ConfigLoader + Send + Sync + 'static,
        region: impl ProvideRegion + 'static,
        credentials: Option<SharedCredentialsProvider>,
    ) -> Self {
        Self {
            http,
            settings: Box::new(settings),
            region: Box::new(region),
            credentials,
            clients: Mutex::default(),
        }
    }

    /// The client for this group.
    ///
    /// # Errors
    /// Where no region is known.
    pub(super) async fn client(&self, group: &TargetGroup) -> Result<Client, Failure> {
        let region = match region_of(&group.id) {
            Some(region) => region,
            None => self
                .region
                .region()
                .await
                .ok_or_else(|| Failure::Unavailable(NO_REGION.to_owned()))?,
        };
        let key = (region, group.role.clone());
        let known = self.clients().get(&key).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        let config = self.config(key.0.clone(), group.role.as_ref()).await;
        // Another call may have been faster: its client has credentials already.
        let client = self
            .clients()
            .entry(key)
            .or_insert_with(|| {
                let config = Builder::from(&config).interceptor(WholeAnswers);
                Client::from_conf(config.build())
            })
            .clone();
        Ok(client)
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<(Region, Option<Role>), Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn config(&self, region: Region, role: Option<&Role>) -> SdkConfig {
        // Answers aren't streamed, so the time-out of the call covers what stalls.
        let config = (self.settings)()
            .app_name(AppName::new(SESSION_NAME).expect("the name must be a plain word"))
            .http_client(self.http.clone())
            .region(region)
            .retry_config(RetryConfig::disabled())
            .timeout_config(
                TimeoutConfig::builder()
                    .connect_timeout(CONNECT_TIMEOUT)
                    .build(),
            )
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .no_credentials()
            .load()
            .await;
        let own = match &self.credentials {
            Some(credentials) => credentials.clone(),
            None => self.default_credentials(&config).await,
        };
        let config = config.into_builder().credentials_provider(own).build();
        let Some(role) = role else { return config };
        let mut provider = AssumeRoleProvider::builder(&role.arn)
            .session_name(SESSION_NAME)
            .configure(&config);
        if let Some(external_id) = &role.external_id {
            provider = provider.external_id(external_id);
        }
        let assumed = SharedCredentialsProvider::new(provider.build().await);
        config.into_builder().credentials_provider(assumed).build()
    }

    /// Environment, profile, web identity (IRSA), container endpoint (Pod Identity), node role: in that order. Nothing
    /// is asked before the first request needs it.
    async fn default_credentials(&self, config: &SdkConfig) -> SharedCredentialsProvider {
        let mut settings = ProviderConfig::without_region()
            .with_http_client(self.http.clone())
            .with_use_fips(config.use_fips())
            .with_use_dual_stack(config.use_dual_stack());
        if let Some(timeouts) = config.timeout_config() {
            settings = settings.with_timeout_config(timeouts.clone());
        }
        let chain = DefaultCredentialsChain::builder()
            .configure(settings)
            .imds_client(imds_client(&self.http))
            .region(config.region().cloned())
            .build()
            .await;
        SharedCredentialsProvider::new(chain)
    }
}

/// The region in an ARN: `arn:PARTITION:elasticloadbalancing:REGION:ACCOUNT:targetgroup/NAME/ID`.
fn region_of(id: &GroupId) -> Option<Region> {
    let GroupId::Arn(arn) = id else { return None };
    let region = arn.split(':').nth(3).filter(|region| !region.is_empty())?;
    Some(Region::new(region.to_owned()))
}

fn imds_client(http: &SharedHttpClient) -> imds::Client {
    imds::Client::builder()
        .configure(&ProviderConfig::without_region().with_http_client(http.clone()))
        .max_attempts(IMDS_ATTEMPTS)
        .connect_timeout(IMDS_TIMEOUT)
        .read_timeout(IMDS_TIMEOUT)
        .build()
}

/// TLS by rustls with ring, like everywhere here. Trusted are the machine's authorities where it has any (an
/// operator's own among them, by `SSL_CERT_FILE`), else Mozilla's: our image has no files.
pub(super) fn http_client() -> SharedHttpClient {
    let is_machine_equipped = !rustls_native_certs::load_native_certs().certs.is_empty();
    let mut trusted = TrustStore::empty().with_native_roots(is_machine_equipped);
    if !is_machine_equipped {
        for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
            trusted.add_pem_certificate(pem(certificate));
        }
    }
    let context = TlsContext::builder()
        .with_trust_store(trusted)
        .build()
        .expect("a list of certificates must make a context");
    aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(context)
        .build_https()
}

fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_the_arns_own() {
        let region = |arn: &str| region_of(&GroupId::Arn(arn.to_owned())).map(|r| r.to_string());
        for (arn, expected) in [
            (
                "arn:aws:elasticloadbalancing:eu-west-1:111122223333:targetgroup/web/0123",
                Some("eu-west-1"),
            ),
            (
                "arn:aws-cn:elasticloadbalancing:cn-north-1:111122223333:targetgroup/web/0123",
                Some("cn-north-1"),
            ),
            ("arn:aws:elasticloadbalancing::1:targetgroup/web/0123", None),
            ("web", None),
        ] {
            assert_eq!(region(arn).as_deref(), expected, "{arn}");
        }
        assert_eq!(region_of(&GroupId::Name("web".to_owned())), None);
    }

    /// What the image would do: no files at all.
    #[test]
    fn mozillas_authorities_are_all_readable() {
        use rustls::pki_types::{CertificateDer, pem::PemObject as _};
        let mut roots = rustls::RootCertStore::empty();
        for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
            let read = CertificateDer::from_pem_slice(pem(certificate).as_bytes())
                .expect("the PEM must be readable");
            assert_eq!(&read, certificate);
            roots.add(read).expect("the certificate must be an anchor");
        }
        assert!(roots.len() > 50, "{}", roots.len());
    }
}
