//! Real sockets and real TLS on loopback. Waits are for what a peer does, with a limit; limits of the server that a
//! test waits for are cut to a fraction of a second.

use std::time::SystemTime;

use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use certs::{Identity, Lives, Policy, Resolver, Verified};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;

use super::*;

const NAME: &str = "gate.test.svc";
const PATIENCE: Duration = Duration::from_secs(10);

const POLICY: Policy = Policy {
    common_name: "test authority",
    lives: Lives {
        authority: Duration::from_hours(1),
        leaf: Duration::from_hours(1),
    },
    names: |_| vec![NAME.to_owned()],
};

fn mk_identity() -> Identity {
    Identity::create(&POLICY, SystemTime::now()).unwrap()
}

fn verify(identity: &Identity) -> Verified {
    identity.verify(POLICY.names, SystemTime::now()).unwrap()
}

/// A served router with its identity; the router answers `/` at once and `/slow` when told to.
struct Served {
    address: SocketAddr,
    spawned: Spawned,
    shutdown: CancellationToken,
    identity: Identity,
    resolver: Arc<Resolver>,
    slow_began: Arc<Notify>,
    slow_may_end: Arc<Notify>,
}

fn serve(limits: Limits) -> Served {
    let identity = mk_identity();
    let resolver = Arc::new(Resolver::new());
    resolver.serve(&[&verify(&identity)]);
    let (slow_began, slow_may_end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began, may_end) = (Arc::clone(&slow_began), Arc::clone(&slow_may_end));
    let slow = async move || {
        began.notify_one();
        may_end.notified().await;
        "slow"
    };
    let router = Router::new()
        .route("/", get(|| async { "quick" }))
        .route("/slow", get(slow));
    let bound = Bound::bind("test", ([127, 0, 0, 1], 0).into(), limits).unwrap();
    let shutdown = CancellationToken::new();
    Served {
        address: bound.address(),
        spawned: bound.spawn_tls(
            tls_config(Arc::clone(&resolver) as _),
            router,
            shutdown.clone(),
        ),
        shutdown,
        identity,
        resolver,
        slow_began,
        slow_may_end,
    }
}

/// A client's connection and the leaf that it was shown.
struct Client {
    requests: SendRequest<Body>,
    ended: JoinHandle<hyper::Result<()>>,
    leaf: CertificateDer<'static>,
    handshake: Option<HandshakeKind>,
}

/// A client that trusts the served authority, and that would rather speak HTTP/2.
fn client_config(
    served: &Served,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(verify(&served.identity).trust_pem.as_bytes()) {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

impl Client {
    async fn connect(served: &Served) -> io::Result<Self> {
        Self::connect_as(served, client_config(served, rustls::ALL_VERSIONS)).await
    }

    async fn connect_as(served: &Served, config: Arc<ClientConfig>) -> io::Result<Self> {
        let stream = TcpStream::connect(served.address).await?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        let tls = stream.get_ref().1;
        assert_eq!(tls.alpn_protocol(), Some(b"http/1.1".as_slice()));
        let (leaf, handshake) = (
            tls.peer_certificates().unwrap_or_default()[0].clone(),
            tls.handshake_kind(),
        );
        let leaf = leaf.into_owned();
        let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (requests, connection) = connection.map_err(io::Error::other)?;
        Ok(Self {
            requests,
            ended: tokio::spawn(connection),
            leaf,
            handshake,
        })
    }

    async fn get(&mut self, path: &str) -> hyper::Result<String> {
        let request = Request::get(path)
            .header("host", NAME)
            .body(Body::empty())
            .unwrap();
        let response = self.requests.send_request(request).await?;
        let body = response.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

#[tokio::test]
async fn each_of_two_rotations_is_seen_by_the_next_handshake_on_the_same_socket() {
    let mut served = serve(Limits::WEBHOOK);
    let mut oldest = Client::connect(&served).await.unwrap();
    let mut leaves = vec![oldest.leaf.clone()];
    for _ in 0..2 {
        served.identity.leaf = {
            let authority = certs::Authority::from_pem(&served.identity.authority).unwrap();
            let names = (POLICY.names)(authority.key_id());
            authority
                .issue_leaf(&names, POLICY.lives.leaf, SystemTime::now())
                .unwrap()
        };
        let verified = verify(&served.identity);
        served.resolver.serve(&[&verified]);
        let mut client = Client::connect(&served).await.unwrap();
        assert_eq!(client.get("/").await.unwrap(), "quick");
        let pem = served.identity.leaf.cert.as_bytes();
        assert_eq!(client.leaf, CertificateDer::from_pem_slice(pem).unwrap());
        leaves.push(client.leaf);
    }
    leaves.dedup();
    assert_eq!(leaves.len(), 3);
    assert_eq!(
        oldest.get("/").await.unwrap(),
        "quick",
        "an open connection goes on"
    );
    served.shutdown.cancel();
    soon("join", served.spawned.join()).await;
}

#[tokio::test]
async fn both_tls_versions_are_served_and_no_session_is_resumed() {
    let served = serve(Limits::WEBHOOK);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = client_config(&served, &[version]);
        for _ in 0..2 {
            let client = Client::connect_as(&served, Arc::clone(&config)).await;
            let mut client = client.unwrap();
            assert_eq!(client.get("/").await.unwrap(), "quick");
            assert_eq!(client.handshake, Some(HandshakeKind::Full));
        }
    }
}

#[tokio::test]
async fn client_of_another_authority_is_not_served() {
    let mut served = serve(Limits::WEBHOOK);
    served.identity = mk_identity();
    assert!(Client::connect(&served).await.is_err());
}

#[tokio::test]
async fn shutdown_lets_the_request_in_flight_end_and_closes_idle_connections() {
    let served = serve(Limits::WEBHOOK);
    let mut idle = Client::connect(&served).await.unwrap();
    idle.get("/").await.unwrap();
    let unused = Client::connect(&served).await.unwrap();
    let mut busy = Client::connect(&served).await.unwrap();
    let slow = tokio::spawn(async move { busy.get("/slow").await });
    soon("the slow request", served.slow_began.notified()).await;

    served.shutdown.cancel();
    soon("idle connection's end", idle.ended)
        .await
        .unwrap()
        .unwrap();
    // Closed before any request, which hyper's client calls an incomplete message.
    let _ = soon("unused connection's end", unused.ended).await.unwrap();
    assert!(!slow.is_finished());
    let refused = soon("refusal", async {
        while TcpStream::connect(served.address).await.is_ok() {}
    });
    refused.await;

    served.slow_may_end.notify_one();
    assert_eq!(soon("slow answer", slow).await.unwrap().unwrap(), "slow");
    soon("join", served.spawned.join()).await;
}

#[tokio::test]
async fn request_that_outlasts_the_drain_is_cut_off() {
    let served = serve(Limits {
        drain: Duration::from_millis(50),
        ..Limits::WEBHOOK
    });
    let mut busy = Client::connect(&served).await.unwrap();
    let slow = tokio::spawn(async move { busy.get("/slow").await });
    soon("the slow request", served.slow_began.notified()).await;
    served.shutdown.cancel();
    soon("join", served.spawned.join()).await;
    assert!(soon("cut-off", slow).await.unwrap().is_err());
}

#[tokio::test]
async fn stalled_handshake_ends_while_others_are_served() {
    let served = serve(Limits {
        handshake: Duration::from_millis(300),
        ..Limits::WEBHOOK
    });
    let mut stalled = TcpStream::connect(served.address).await.unwrap();
    let mut client = soon("another client", Client::connect(&served))
        .await
        .unwrap();
    assert_eq!(client.get("/").await.unwrap(), "quick");
    assert_eq!(
        soon("end of the stalled one", stalled.read(&mut [0; 64]))
            .await
            .unwrap(),
        0
    );
    assert_eq!(client.get("/").await.unwrap(), "quick");
}

#[tokio::test]
async fn connection_without_a_request_ends() {
    let served = serve(Limits {
        head: Duration::from_millis(100),
        ..Limits::WEBHOOK
    });
    let client = Client::connect(&served).await.unwrap();
    // Closed, or answered 408: in either case the client's side comes to its end.
    let _ = soon("end", client.ended).await.unwrap();
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_a_place() {
    let served = serve(Limits {
        connections: 1,
        ..Limits::WEBHOOK
    });
    let mut first = Client::connect(&served).await.unwrap();
    assert_eq!(first.get("/").await.unwrap(), "quick");
    let mut second = Box::pin(Client::connect(&served));
    // It isn't accepted, so nothing will come; the time is long for a handshake on loopback.
    assert!(
        tokio::time::timeout(Duration::from_millis(200), &mut second)
            .await
            .is_err()
    );
    first.ended.abort();
    drop(first);
    assert_eq!(
        soon("the freed place", second)
            .await
            .unwrap()
            .get("/")
            .await
            .unwrap(),
        "quick"
    );
}

#[tokio::test]
async fn plaintext_listener_goes_from_unready_to_ready() {
    let readiness = crate::readiness::Readiness::new();
    let guard = readiness.register("secrets");
    let bound = Bound::bind("admin", ([127, 0, 0, 1], 0).into(), Limits::ADMIN).unwrap();
    let address = bound.address();
    let shutdown = CancellationToken::new();
    let router = crate::admin::router(readiness, crate::metrics::Metrics::new());
    let spawned = bound.spawn_plain(router, shutdown.clone());

    let stream = TcpStream::connect(address).await.unwrap();
    let (mut requests, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let mut status = async || {
        let request = Request::get("/readyz")
            .header("host", "x")
            .body(Body::empty())
            .unwrap();
        requests
            .send_request(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(status().await, 503);
    drop(guard);
    assert_eq!(status().await, 200);
    shutdown.cancel();
    soon("join", spawned.join()).await;
    soon("end", connection).await.unwrap().unwrap();
}

#[tokio::test]
async fn taken_port_is_an_error_that_names_it() {
    let bound = Bound::bind("first", ([127, 0, 0, 1], 0).into(), Limits::ADMIN).unwrap();
    let error = Bound::bind("second", bound.address(), Limits::ADMIN).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("failed to listen on {} for second", bound.address())
    );
}

#[test]
fn only_errors_of_the_listener_itself_make_it_pause() {
    for (errno, clients_own) in [
        (24, false),
        (23, false),
        (12, false),
        (103, true),
        (104, true),
    ] {
        let error = io::Error::from_raw_os_error(errno);
        assert_eq!(is_clients_own(&error), clients_own, "{error}");
    }
}
