//! These run a real `HAProxy` on the loopback address, against servers in this process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::lab::failure::Failure;
use crate::lab::load::{Asks, Client, Load};
use crate::lab::pool::Pool;
use crate::lab::tally::Tally;
use crate::lab::verdict::On;

/// Longest wait for a count.
const COUNT_PATIENCE: Duration = Duration::from_secs(10);

/// A service that counts its requests and ends with all its connections when aborted.
async fn mk_server() -> (SocketAddr, Arc<AtomicU64>, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&count);
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let counter = Arc::clone(&counter);
            let service = service_fn(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                async {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
                }
            });
            connections
                .spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, count, task)
}

async fn mk_haproxy(layer: Layer, sources: usize) -> (Haproxy, Vec<SocketAddr>) {
    Haproxy::start_anywhere(layer, sources, 4).await.unwrap()
}

/// 400 requests/s through a balancer of `layer`: half of them over new connections, half over pooled ones.
fn mk_load(layer: Layer, frontend: SocketAddr) -> Load {
    let client = |pools| Client {
        pool: Pool::new(vec![frontend], pools, fastrand::Rng::with_seed(1)),
        layer,
        path: "/",
        asks: Asks::PerSecond(200.0),
        counts_sources: true,
    };
    Load::start(vec![client(false), client(true)], Vec::new)
}

async fn send(frontend: SocketAddr, at_least: u64) -> Tally {
    let load = mk_load(Layer::Requests, frontend);
    let enough = async {
        while load.so_far().0 < at_least {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(COUNT_PATIENCE, enough).await.unwrap();
    load.finish().await
}

async fn wait_for(count: &AtomicU64, at_least: u64) {
    let enough = async {
        while count.load(Ordering::SeqCst) < at_least {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(COUNT_PATIENCE, enough).await.unwrap();
}

/// Waits until nothing was counted for half a second, and answers with the count.
async fn wait_until_still(count: &AtomicU64) -> u64 {
    let still = async {
        loop {
            let before = count.load(Ordering::SeqCst);
            sleep(Duration::from_millis(500)).await;
            if count.load(Ordering::SeqCst) == before {
                return before;
            }
        }
    };
    timeout(COUNT_PATIENCE, still).await.unwrap()
}

/// How the misses of a load looked.
fn kinds(tally: &Tally) -> BTreeMap<Failure, u64> {
    tally.judge(|_| None).failures
}

#[tokio::test]
async fn slot_in_maintenance_gets_no_request_over_a_pooled_connection_either() {
    let (haproxy, frontends) = mk_haproxy(Layer::Requests, 1).await;
    let (runtime, frontend) = (haproxy.runtime(), frontends[0]);
    let ((first, first_count, _a), (second, second_count, _b)) =
        (mk_server().await, mk_server().await);
    runtime.add(0, 1, first).await.unwrap();
    runtime.add(0, 2, second).await.unwrap();
    let load = mk_load(Layer::Requests, frontend);
    wait_for(&first_count, 50).await;
    wait_for(&second_count, 50).await;
    runtime.remove(0, 1).await.unwrap();
    // What was under way may still arrive; HAProxy's answer means that nothing new is begun.
    let at_removal = wait_until_still(&first_count).await;
    let second_then = second_count.load(Ordering::SeqCst);
    wait_for(&second_count, second_then + 100).await;
    assert_eq!(first_count.load(Ordering::SeqCst), at_removal);
    assert_eq!(load.finish().await.misses, Vec::new());
}

#[tokio::test]
async fn server_that_ended_costs_requests_until_it_is_removed() {
    let (haproxy, frontends) = mk_haproxy(Layer::Requests, 1).await;
    let (runtime, frontend) = (haproxy.runtime(), frontends[0]);
    let ((first, _, task), (second, _, _b)) = (mk_server().await, mk_server().await);
    runtime.add(0, 1, first).await.unwrap();
    runtime.add(0, 2, second).await.unwrap();
    assert_eq!(send(frontend, 50).await.missed(), 0);
    task.abort();
    let tally = send(frontend, 100).await;
    // Every second request goes to the one that ended: neither retried nor sent elsewhere.
    assert!(tally.missed() * 5 > tally.requests * 2, "{tally:?}");
    assert!(
        kinds(&tally).contains_key(&Failure::Status(503)),
        "{tally:?}"
    );
    runtime.remove(0, 1).await.unwrap();
    assert_eq!(send(frontend, 50).await.missed(), 0);
}

#[tokio::test]
async fn source_that_dropped_a_target_leaves_the_others_sending() {
    let (haproxy, frontends) = mk_haproxy(Layer::Requests, 2).await;
    let runtime = haproxy.runtime();
    let (first, first_count, _a) = mk_server().await;
    for source in 0..2 {
        runtime.add(source, 1, first).await.unwrap();
    }
    runtime.remove(0, 1).await.unwrap();
    assert_eq!(send(frontends[1], 50).await.missed(), 0);
    assert!(first_count.load(Ordering::SeqCst) >= 50);
    let tally = send(frontends[0], 10).await;
    assert_eq!(
        kinds(&tally),
        [(Failure::Status(503), tally.requests)].into()
    );
}

#[tokio::test]
async fn connections_stay_open_through_a_slot_in_maintenance_until_their_server_ends() {
    let (haproxy, frontends) = mk_haproxy(Layer::Connections, 1).await;
    let (runtime, frontend) = (haproxy.runtime(), frontends[0]);
    let ((first, first_count, task), (second, second_count, _b)) =
        (mk_server().await, mk_server().await);
    runtime.add(0, 1, first).await.unwrap();
    let load = mk_load(Layer::Connections, frontend);
    wait_for(&first_count, 100).await;
    runtime.add(0, 2, second).await.unwrap();
    runtime.remove(0, 1).await.unwrap();
    wait_for(&second_count, 50).await;
    let then = first_count.load(Ordering::SeqCst);
    wait_for(&first_count, then + 50).await;
    assert_eq!(load.so_far().1, 0);
    task.abort();
    let then = second_count.load(Ordering::SeqCst);
    wait_for(&second_count, then + 100).await;
    let tally = load.finish().await;
    // At most what was under way on open connections; what is opened from now on goes to the other one.
    let is_open = |on: &On| matches!(on, On::OpenConnection { pod } if pod == "hello");
    assert!(
        tally.misses.iter().all(|miss| is_open(&miss.on)),
        "{tally:?}"
    );
}

#[tokio::test]
async fn client_failures_are_told_apart() {
    let nobody = StdListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let tally = send(nobody, 10).await;
    assert_eq!(kinds(&tally), [(Failure::Connect, tally.requests)].into());

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let _closer = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let tally = send(address, 10).await;
    assert_eq!(kinds(&tally), [(Failure::Closed, tally.requests)].into());
}

#[tokio::test]
async fn refusal_is_an_error() {
    let (haproxy, _) = mk_haproxy(Layer::Requests, 1).await;
    let error = haproxy.runtime().remove(0, 9).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { answer, .. } if answer == "No such server."),
        "{error}"
    );
}

#[tokio::test]
async fn port_that_somebody_took_is_told_from_other_errors() {
    let taken = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let frontends = [taken.local_addr().unwrap()];
    let error = Haproxy::start(Layer::Requests, &frontends, 1).await;
    let error = error.unwrap_err();
    assert!(matches!(&error, Error::Silent(_)), "{error}");
}

#[tokio::test]
async fn haproxy_ends_with_its_owner() {
    let (haproxy, frontends) = mk_haproxy(Layer::Requests, 1).await;
    drop(haproxy);
    let deadline = Instant::now() + Duration::from_secs(5);
    while tokio::net::TcpStream::connect(frontends[0]).await.is_ok() {
        assert!(Instant::now() < deadline, "HAProxy still listens");
        sleep(Duration::from_millis(10)).await;
    }
}
