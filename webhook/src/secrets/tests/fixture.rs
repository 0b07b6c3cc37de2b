//! A replica that keeps the confirmer's Secret, and what others do to that Secret.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::fake_api::FakeApi;
use crate::readiness::Readiness;
use crate::secrets::*;

pub(super) const SECRETS: &str = "/api/v1/namespaces/prestop-gate/secrets";
pub(super) const NAME: &str = "prestop-gate-confirmer-tls";
/// Leaves hold 900 s (and 90 s before they are issued), so they are due 570 s after.
pub(super) const LIVES: Lives = Lives {
    authority: Duration::from_hours(10),
    leaf: Duration::from_mins(15),
};
pub(super) const CHECK_EVERY: Duration = Duration::from_mins(1);

/// A replica that keeps the confirmer's Secret.
pub(super) struct Replica {
    pub(super) api: FakeApi,
    pub(super) trust: watch::Receiver<Option<Trust>>,
    pub(super) resolver: Arc<Resolver>,
    pub(super) readiness: Readiness,
    pub(super) metrics: Metrics,
    pub(super) begun: Instant,
    /// Seconds by which the wall clock has jumped.
    pub(super) jump: Arc<AtomicU64>,
    pub(super) shutdown: CancellationToken,
    pub(super) task: JoinHandle<()>,
}

impl Replica {
    pub(super) fn start(api: &FakeApi) -> Self {
        let (readiness, metrics) = (Readiness::new(), Metrics::new());
        let (begun, jump) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let jumped = Arc::clone(&jump);
        let options = Options {
            lives: LIVES,
            check_every: CHECK_EVERY,
            clock: Arc::new(move || {
                wall_clock(begun.elapsed().as_secs() + jumped.load(Ordering::Relaxed))
            }),
        };
        let guard = readiness.register("secrets");
        let keeper = Keeper::new(api.client(), CONFIRMER, options, metrics.clone(), guard);
        let shutdown = CancellationToken::new();
        Self {
            api: api.clone(),
            trust: keeper.trust(),
            resolver: keeper.resolver(),
            readiness,
            metrics,
            begun,
            jump,
            task: tokio::spawn(keeper.keep(shutdown.clone())),
            shutdown,
        }
    }

    pub(super) async fn ready(&mut self) -> Trust {
        let trust = tokio::time::timeout(
            Duration::from_hours(1),
            self.trust.wait_for(Option::is_some),
        );
        trust
            .await
            .expect("there must be a certificate by now")
            .unwrap()
            .clone()
            .unwrap()
    }

    /// Lets time pass until there are so many writes; which, and when after the start.
    pub(super) async fn writes(&self, number: usize) -> (Vec<(Method, Value)>, u64) {
        for _ in 0..3_600 {
            let writes = self.api.writes();
            if writes.len() >= number {
                let writes = writes
                    .into_iter()
                    .map(|call| (call.method, call.body))
                    .collect();
                return (writes, self.begun.elapsed().as_secs());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("only {:?} within an hour", self.api.writes());
    }

    /// The leaf that a waiter gets which trusts `trust`, by a handshake in memory at the replica's time.
    pub(super) async fn shown_leaf(&self, trust: &Trust) -> CertificateDer<'static> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(trust.ca_pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clock = Arc::new(ClientClock(self.begun));
        let config = ClientConfig::builder_with_details(provider, clock)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(contract::server_name(&trust.key_id)).unwrap();
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let server = TlsAcceptor::from(crate::server::tls_config(self.resolver.clone()));
        let client = TlsConnector::from(Arc::new(config));
        let (client, _server) = tokio::join!(client.connect(name, ours), server.accept(theirs));
        client.unwrap().get_ref().1.peer_certificates().unwrap()[0]
            .clone()
            .into_owned()
    }

    pub(super) fn served_until(&self) -> f64 {
        let labels = [("secret", NAME), ("kind", "leaf")];
        self.metrics
            .certificate_not_after_seconds
            .get_or_create(&labels)
            .get()
    }
}

/// The wall clock of a client, which goes with the test's time.
#[derive(Debug)]
struct ClientClock(Instant);

impl TimeProvider for ClientClock {
    fn current_time(&self) -> Option<UnixTime> {
        let now = wall_clock(self.0.elapsed().as_secs());
        now.duration_since(SystemTime::UNIX_EPOCH)
            .ok()
            .map(UnixTime::since_unix_epoch)
    }
}

pub(super) fn wall_clock(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

pub(super) fn mk_identity(seconds: u64) -> Identity {
    Identity::create(&policy(), wall_clock(seconds)).unwrap()
}

pub(super) fn policy() -> Policy {
    Policy {
        common_name: CONFIRMER.common_name,
        lives: LIVES,
        names: CONFIRMER.names,
    }
}

/// Stores an identity as another replica would.
pub(super) fn store(api: &FakeApi, identity: &Identity) {
    api.put(
        SECRETS,
        serde_json::to_value(stored::with_identity(None, &CONFIRMER, identity)).unwrap(),
    );
}

pub(super) fn stored_identity(api: &FakeApi) -> Identity {
    stored::read(&serde_json::from_value(api.object(SECRETS, NAME).unwrap()).unwrap())
}

/// Whether the Secret was read by itself, beside the watch.
pub(super) fn was_read_again(api: &FakeApi) -> bool {
    let path = format!("{SECRETS}/{NAME}");
    api.calls()
        .iter()
        .any(|call| call.method == Method::GET && call.path == path)
}

pub(super) fn methods(writes: &[(Method, Value)]) -> Vec<&str> {
    writes.iter().map(|(method, _)| method.as_str()).collect()
}

/// Time in which whatever is wrong would be written.
pub(super) async fn some_time() {
    tokio::time::sleep(Duration::from_mins(8)).await;
}
