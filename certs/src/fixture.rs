//! What the unit tests share: a fixed time, identities of seconds' life, and a TLS handshake in memory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use crate::{Identity, Lives, Policy, Resolver};

/// The hour at which the tests begin.
pub(crate) const EPOCH: u64 = 1_700_000_000;

pub(crate) fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH + seconds)
}

pub(crate) fn names(key_id: &str) -> Vec<String> {
    vec![
        "gate.test.svc".to_owned(),
        format!("{key_id}.gate.test.svc"),
    ]
}

/// Authorities hold for 9,000 s (150 min), leaves for 900 s (15 min; and 90 s before they are issued).
pub(crate) const POLICY: Policy = Policy {
    common_name: "test authority",
    lives: Lives {
        authority: Duration::from_mins(150),
        leaf: Duration::from_mins(15),
    },
    names,
};

pub(crate) fn mk_identity(seconds: u64) -> Identity {
    Identity::create(&POLICY, at(seconds)).unwrap()
}

#[derive(Debug)]
struct Fixed(u64);

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            EPOCH + self.0,
        )))
    }
}

/// Handshakes as a client that trusts `trust_pem`; the leaf that it accepted.
#[expect(
    clippy::unwrap_in_result,
    reason = "its error is the handshake's; a broken set-up is a panic of the test"
)]
pub(crate) fn handshake(
    resolver: &Arc<Resolver>,
    trust_pem: &str,
    server_name: &str,
    seconds: u64,
) -> Result<CertificateDer<'static>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(trust_pem.as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
    let client =
        ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(Fixed(seconds)))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_webpki_verifier(verifier)
            .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(resolver) as _);
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(client.peer_certificates().unwrap()[0].clone().into_owned())
}
