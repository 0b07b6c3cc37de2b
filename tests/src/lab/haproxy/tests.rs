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
use crate::lab::load::{Load, Plan, Tally};

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

async fn mk_haproxy() -> (Haproxy, SocketAddr) {
    let frontend = StdListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    (Haproxy::start(frontend, 4).await.unwrap(), frontend)
}

fn mk_load(frontend: SocketAddr) -> Load {
    let sources = vec![Ipv4Addr::new(127, 0, 1, 1), Ipv4Addr::new(127, 0, 1, 2)];
    Load::start(&Plan {
        frontend,
        sources,
        rate: 400,
        patience: Duration::from_secs(5),
    })
}

async fn send(frontend: SocketAddr, at_least: u64) -> Tally {
    let load = mk_load(frontend);
    while load.so_far().0 < at_least {
        sleep(Duration::from_millis(5)).await;
    }
    load.finish().await
}

#[tokio::test]
async fn slot_in_maintenance_gets_no_request_over_a_pooled_connection_either() {
    let (haproxy, frontend) = mk_haproxy().await;
    let runtime = haproxy.runtime();
    let ((first, first_count, _a), (second, second_count, _b)) =
        (mk_server().await, mk_server().await);
    runtime.add(1, first).await.unwrap();
    runtime.add(2, second).await.unwrap();
    let load = mk_load(frontend);
    while first_count.load(Ordering::SeqCst) < 50 || second_count.load(Ordering::SeqCst) < 50 {
        sleep(Duration::from_millis(5)).await;
    }
    runtime.remove(1).await.unwrap();
    // What was under way may still arrive; HAProxy's answer means that nothing new is begun.
    sleep(Duration::from_millis(50)).await;
    let (at_removal, second_then) = (
        first_count.load(Ordering::SeqCst),
        second_count.load(Ordering::SeqCst),
    );
    while second_count.load(Ordering::SeqCst) < second_then + 100 {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(first_count.load(Ordering::SeqCst), at_removal);
    assert_eq!(load.finish().await.failures, BTreeMap::new());
}

#[tokio::test]
async fn server_that_ended_costs_requests_until_it_is_removed() {
    let (haproxy, frontend) = mk_haproxy().await;
    let runtime = haproxy.runtime();
    let ((first, _, task), (second, _, _b)) = (mk_server().await, mk_server().await);
    runtime.add(1, first).await.unwrap();
    runtime.add(2, second).await.unwrap();
    assert_eq!(send(frontend, 50).await.failed(), 0);
    task.abort();
    let tally = send(frontend, 100).await;
    // Every second request goes to the one that ended: neither retried nor sent elsewhere.
    assert!(tally.failed() * 5 > tally.requests * 2, "{tally:?}");
    assert!(
        tally.failures.contains_key(&Failure::Status(503)),
        "{tally:?}"
    );
    runtime.remove(1).await.unwrap();
    assert_eq!(send(frontend, 50).await.failed(), 0);
}

#[tokio::test]
async fn client_failures_are_told_apart() {
    let nobody = StdListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let tally = send(nobody, 10).await;
    assert_eq!(tally.failures, [(Failure::Connect, tally.requests)].into());

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let _closer = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let tally = send(address, 10).await;
    assert_eq!(tally.failures, [(Failure::Closed, tally.requests)].into());
}

#[tokio::test]
async fn refusal_is_an_error() {
    let (haproxy, _) = mk_haproxy().await;
    let error = haproxy.runtime().remove(9).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { answer, .. } if answer == "No such server."),
        "{error}"
    );
}

#[tokio::test]
async fn haproxy_ends_with_its_owner() {
    let (haproxy, frontend) = mk_haproxy().await;
    drop(haproxy);
    let deadline = Instant::now() + Duration::from_secs(5);
    while tokio::net::TcpStream::connect(frontend).await.is_ok() {
        assert!(Instant::now() < deadline, "HAProxy still listens");
        sleep(Duration::from_millis(10)).await;
    }
}
