//! Against an API server in memory, with paused time: the wall clock goes with it.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use k8s_openapi::ByteString;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::fake_api::FakeApi;
use crate::readiness::Readiness;

const SECRETS: &str = "/api/v1/namespaces/prestop-gate/secrets";
const NAME: &str = "prestop-gate-confirmer-tls";
/// Leaves hold 900 s (and 90 s before they are issued), so they are due 570 s after.
const LIVES: Lives = Lives {
    authority: Duration::from_hours(10),
    leaf: Duration::from_mins(15),
};
const CHECK_EVERY: Duration = Duration::from_mins(1);

/// A replica that keeps the confirmer's Secret.
struct Replica {
    api: FakeApi,
    trust: watch::Receiver<Option<Trust>>,
    resolver: Arc<Resolver>,
    readiness: Readiness,
    metrics: Metrics,
    begun: Instant,
    /// Seconds by which the wall clock has jumped.
    jump: Arc<AtomicU64>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(api: &FakeApi) -> Self {
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

    async fn ready(&mut self) -> Trust {
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
    async fn writes(&self, number: usize) -> (Vec<(Method, Value)>, u64) {
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
    async fn shown_leaf(&self, trust: &Trust) -> CertificateDer<'static> {
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

    fn served_until(&self) -> f64 {
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

fn wall_clock(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn mk_identity(seconds: u64) -> Identity {
    Identity::create(&policy(), wall_clock(seconds)).unwrap()
}

fn policy() -> Policy {
    Policy {
        common_name: CONFIRMER.common_name,
        lives: LIVES,
        names: CONFIRMER.names,
    }
}

/// Stores an identity as another replica would.
fn store(api: &FakeApi, identity: &Identity) {
    api.put(
        SECRETS,
        serde_json::to_value(stored::with_identity(None, &CONFIRMER, identity)).unwrap(),
    );
}

fn stored_identity(api: &FakeApi) -> Identity {
    stored::read(&serde_json::from_value(api.object(SECRETS, NAME).unwrap()).unwrap())
}

/// Whether the Secret was read by itself, beside the watch.
fn was_read_again(api: &FakeApi) -> bool {
    let path = format!("{SECRETS}/{NAME}");
    api.calls()
        .iter()
        .any(|call| call.method == Method::GET && call.path == path)
}

fn methods(writes: &[(Method, Value)]) -> Vec<&str> {
    writes.iter().map(|(method, _)| method.as_str()).collect()
}

/// Time in which whatever is wrong would be written.
async fn some_time() {
    tokio::time::sleep(Duration::from_mins(8)).await;
}

#[tokio::test(start_paused = true)]
async fn first_replica_creates_the_secret_and_serves_it() {
    let api = FakeApi::default();
    let mut replica = Replica::start(&api);
    assert_eq!(replica.readiness.pending(), ["secrets"]);
    let trust = replica.ready().await;
    let identity = stored_identity(&api);
    let verified = identity.verify(CONFIRMER.names, wall_clock(0)).unwrap();
    assert_eq!(
        (verified.trust_pem, verified.key_id),
        (trust.ca_pem, trust.key_id)
    );
    assert!(replica.readiness.pending().is_empty());
    assert!(replica.resolver.is_ready());
    assert_eq!(replica.served_until().to_string(), "1700000900");

    let secret = api.object(SECRETS, NAME).unwrap();
    assert_eq!(secret["type"], "kubernetes.io/tls");
    assert_eq!(
        secret["metadata"]["labels"]["app.kubernetes.io/name"],
        "prestop-gate"
    );
    let keys: Vec<_> = secret["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["ca.crt", "ca.key", "tls.crt", "tls.key"]);
    some_time().await;
    assert_eq!(methods(&replica.writes(1).await.0), ["POST"]);
}

#[tokio::test(start_paused = true)]
async fn calls_stay_within_the_role() {
    let api = FakeApi::default();
    let replica = Replica::start(&api);
    replica.writes(2).await;
    api.delete(SECRETS, NAME);
    replica.writes(3).await;
    for call in api.calls() {
        let is_named = call.path == format!("{SECRETS}/{NAME}");
        let selects = call
            .query
            .contains(&format!("fieldSelector=metadata.name%3D{NAME}"));
        let allowed = match call.method.as_str() {
            "POST" => call.path == SECRETS,
            "GET" => is_named || selects,
            "PUT" => is_named,
            _ => false,
        };
        assert!(allowed, "{call:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn replica_that_is_second_to_create_serves_what_the_first_stored() {
    let api = FakeApi::default();
    let first = mk_identity(0);
    let theirs = first.clone();
    api.before_next(Method::POST, move |api| store(api, &theirs));
    let mut replica = Replica::start(&api);
    let trust = replica.ready().await;
    assert_eq!(trust.ca_pem.trim(), first.authority.cert.trim());
    some_time().await;
    assert_eq!(
        methods(&replica.writes(1).await.0),
        ["POST"],
        "one refused attempt and nothing after it"
    );
    assert!(was_read_again(&api));
    assert_eq!(stored_identity(&api), first);
    let issued = replica
        .metrics
        .certificates_issued
        .get_or_create(&[("secret", NAME)])
        .get();
    assert_eq!(issued, 0);
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_trust_one_authority() {
    let api = FakeApi::default();
    let mut replicas = [Replica::start(&api), Replica::start(&api)];
    let trusts = [replicas[0].ready().await, replicas[1].ready().await];
    assert_eq!(trusts[0], trusts[1]);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(
        stored_identity(&api).authority.cert.trim(),
        trusts[0].ca_pem.trim()
    );
    let [first, second] = replicas.map(|replica| replica.trust.borrow().clone());
    assert_eq!(
        (first.as_ref(), second.as_ref()),
        (Some(&trusts[0]), Some(&trusts[1]))
    );
}

#[tokio::test(start_paused = true)]
async fn leaf_is_renewed_at_two_thirds_and_nothing_else_is_changed() {
    let api = FakeApi::default();
    let before = mk_identity(0);
    store(&api, &before);
    api.change(SECRETS, NAME, |secret| {
        secret["data"]["theirs"] = json!(ByteString(b"kept".to_vec()));
        secret["metadata"]["annotations"] = json!({"their/annotation": "kept"});
        secret["metadata"]["labels"]["their-label"] = "kept".into();
        secret["type"] = "Opaque".into();
    });
    let mut replica = Replica::start(&api);
    replica.ready().await;
    let version = api.object(SECRETS, NAME).unwrap()["metadata"]["resourceVersion"].clone();
    let (writes, seconds) = replica.writes(1).await;
    assert!(
        (570..=570 + CHECK_EVERY.as_secs()).contains(&seconds),
        "{seconds}"
    );
    assert_eq!(methods(&writes), ["PUT"]);
    let written = &writes[0].1;
    assert_eq!(written["metadata"]["resourceVersion"], version);
    assert_eq!(
        written["data"]["theirs"],
        json!(ByteString(b"kept".to_vec()))
    );
    assert_eq!(
        written["metadata"]["annotations"]["their/annotation"],
        "kept"
    );
    assert_eq!(written["metadata"]["labels"]["their-label"], "kept");
    assert_eq!(written["type"], "Opaque", "it can't be changed");
    let after = stored_identity(&api);
    assert_eq!(after.authority, before.authority);
    assert_ne!(after.leaf, before.leaf);
    tokio::time::sleep(CHECK_EVERY).await;
    assert!(replica.served_until() > 1_700_001_400.0, "it is served too");
    assert!(
        !replica.trust.has_changed().unwrap(),
        "clients have nothing to learn"
    );
}

#[tokio::test(start_paused = true)]
async fn replica_that_is_second_to_renew_serves_what_the_first_stored() {
    let api = FakeApi::default();
    let before = mk_identity(0);
    store(&api, &before);
    let mut replica = Replica::start(&api);
    replica.ready().await;
    let plan = certs::plan(Some(&before), None, &policy(), wall_clock(600)).unwrap();
    let theirs = plan.write.unwrap().0;
    let renewed = theirs.clone();
    api.before_next(Method::PUT, move |api| {
        api.change(SECRETS, NAME, |secret| {
            let version = secret["metadata"]["resourceVersion"].clone();
            *secret =
                serde_json::to_value(stored::with_identity(None, &CONFIRMER, &renewed)).unwrap();
            secret["metadata"]["resourceVersion"] = version;
        });
    });
    replica.writes(1).await;
    some_time().await;
    assert_eq!(
        methods(&replica.writes(1).await.0),
        ["PUT"],
        "one refused attempt and nothing after it"
    );
    assert!(was_read_again(&api));
    assert_eq!(stored_identity(&api), theirs);
    assert_eq!(
        replica.served_until().to_string(),
        "1700001500",
        "issued at 600 for 900 s"
    );
}

#[tokio::test(start_paused = true)]
async fn deleted_secret_is_restored_from_what_is_served() {
    let api = FakeApi::default();
    let before = mk_identity(0);
    store(&api, &before);
    let mut replica = Replica::start(&api);
    replica.ready().await;
    api.delete(SECRETS, NAME);
    let (writes, seconds) = replica.writes(1).await;
    assert!(seconds < 5, "the watch tells it, not the timer: {seconds}");
    assert_eq!(methods(&writes), ["POST"]);
    assert_eq!(stored_identity(&api), before);
}

#[tokio::test(start_paused = true)]
async fn broken_secret_is_repaired_without_losing_the_authority() {
    for (broken, is_same_leaf) in [
        ("tls.key", false),
        ("tls.crt", false),
        ("ca.crt", true),
        ("ca.key", true),
    ] {
        let api = FakeApi::default();
        let before = mk_identity(0);
        store(&api, &before);
        let mut replica = Replica::start(&api);
        replica.ready().await;
        api.change(SECRETS, NAME, |secret| {
            secret["data"][broken] = json!(ByteString(b"broken".to_vec()));
        });
        let (writes, _) = replica.writes(1).await;
        assert_eq!(methods(&writes), ["PUT"], "{broken}");
        let after = stored_identity(&api);
        assert_eq!(after.authority, before.authority, "{broken}");
        assert_eq!(after.leaf == before.leaf, is_same_leaf, "{broken}");
        after.verify(CONFIRMER.names, wall_clock(0)).unwrap();
        assert!(replica.resolver.is_ready() && replica.readiness.pending().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn emptied_secret_is_filled() {
    let api = FakeApi::default();
    api.put(
        SECRETS,
        json!({"metadata": {"name": NAME, "namespace": "prestop-gate"}, "type": "Opaque"}),
    );
    let mut replica = Replica::start(&api);
    replica.ready().await;
    stored_identity(&api)
        .verify(CONFIRMER.names, wall_clock(0))
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_write_is_tried_again_with_growing_pauses() {
    let api = FakeApi::default();
    for _ in 0..3 {
        api.fail_next(Method::POST, 403, "Forbidden");
    }
    let mut replica = Replica::start(&api);
    replica.writes(3).await;
    assert_eq!(
        replica.readiness.pending(),
        ["secrets"],
        "nothing is served that isn't stored"
    );
    assert!(!replica.resolver.is_ready());
    replica.ready().await;
    assert_eq!(api.write_pauses(), [1, 2, 4]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_it_is_known_what_is_stored() {
    let api = FakeApi::default();
    let before = mk_identity(0);
    store(&api, &before);
    for _ in 0..10 {
        api.fail_next(Method::GET, 500, "InternalError");
    }
    let mut replica = Replica::start(&api);
    replica.ready().await;
    assert!(
        replica.begun.elapsed() > 2 * CHECK_EVERY,
        "or this test shows nothing"
    );
    assert!(api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn api_server_that_is_down_costs_nothing_that_is_served() {
    let api = FakeApi::default();
    store(&api, &mk_identity(0));
    let mut replica = Replica::start(&api);
    let trust = replica.ready().await;
    for _ in 0..4 {
        api.fail_next(Method::PUT, 500, "InternalError");
    }
    replica.writes(4).await;
    assert!(replica.resolver.is_ready());
    assert_eq!(replica.served_until().to_string(), "1700000900");
    replica.writes(5).await;
    some_time().await;
    assert!(replica.served_until() > 1_700_001_400.0);
    assert_eq!(*replica.trust.borrow(), Some(trust));
}

#[tokio::test(start_paused = true)]
async fn jump_of_the_clock_past_the_leafs_end_is_seen_at_the_next_check() {
    let api = FakeApi::default();
    let before = mk_identity(0);
    store(&api, &before);
    let mut replica = Replica::start(&api);
    replica.ready().await;
    replica.jump.store(20_000, Ordering::Relaxed);
    let (_, seconds) = replica.writes(1).await;
    assert!(seconds <= CHECK_EVERY.as_secs() + 1, "{seconds}");
    let after = stored_identity(&api);
    assert_eq!(after.authority, before.authority);
    after.verify(CONFIRMER.names, wall_clock(20_000)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_of_two_renewals_is_seen_by_the_next_handshake() {
    let api = FakeApi::default();
    let mut replica = Replica::start(&api);
    let trust = replica.ready().await;
    let mut leaves = vec![replica.shown_leaf(&trust).await];
    for renewals in [1, 2] {
        replica.writes(1 + renewals).await;
        let stored = stored_identity(&api).leaf.cert;
        let shown = replica.shown_leaf(&trust).await;
        assert_eq!(
            shown,
            CertificateDer::from_pem_slice(stored.as_bytes()).unwrap()
        );
        leaves.push(shown);
    }
    leaves.dedup();
    assert_eq!(leaves.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn replicas_whose_clocks_disagree_do_not_write_as_fast_as_they_can() {
    let api = FakeApi::default();
    let mut replicas = [Replica::start(&api), Replica::start(&api)];
    for replica in &mut replicas {
        replica.ready().await;
    }
    replicas[1].jump.store(20_000, Ordering::Relaxed);
    let minutes = 10;
    tokio::time::sleep(Duration::from_mins(minutes)).await;
    let writes = api.writes().len() as u64;
    assert!(writes > 10, "or this test shows nothing");
    assert!(
        writes <= 2 * minutes * 60 / WRITE_PAUSE.as_secs(),
        "{writes}"
    );
}

#[tokio::test(start_paused = true)]
async fn change_of_the_authority_is_told() {
    let api = FakeApi::default();
    store(&api, &mk_identity(0));
    let mut replica = Replica::start(&api);
    replica.ready().await;
    replica.trust.mark_unchanged();
    let next = mk_identity(0);
    store(&api, &next);
    replica.trust.changed().await.unwrap();
    assert_eq!(
        replica.ready().await.ca_pem.trim(),
        next.authority.cert.trim()
    );
    some_time().await;
    assert!(api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_the_keeper() {
    let mut replica = Replica::start(&FakeApi::default());
    replica.ready().await;
    replica.shutdown.cancel();
    replica.task.await.unwrap();
}

#[test]
fn names_are_those_that_clients_call() {
    let webhook = (WEBHOOK.names)("0123");
    assert_eq!(
        webhook[0], "prestop-gate-webhook.prestop-gate.svc",
        "what the API server dials"
    );
    let confirmer = (CONFIRMER.names)("0123");
    assert!(
        confirmer.contains(&contract::server_name("0123")),
        "what the waiter asks for"
    );
    assert!(
        confirmer.contains(&"prestop-gate-confirmer.prestop-gate.svc.cluster.local".to_owned())
    );
    for names in [webhook, confirmer] {
        assert!(names[0].len() <= 64, "the common name");
    }
}
