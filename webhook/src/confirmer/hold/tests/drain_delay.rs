//! `GET /v1/drain-delay`: the same hold, asked for once.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::routing::get;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::*;
use crate::confirmer::auth::{PodIdentity, Verifier};
use crate::confirmer::drain_delay::wait;
use crate::confirmer::hold::Holds;
use crate::server::{Bound, Limits};

fn mk_identity() -> PodIdentity {
    PodIdentity {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        uid: "u1".to_owned(),
    }
}

async fn ask(holds: &Holds, max_wait: u64) -> Response {
    wait(holds, &mk_identity(), Duration::from_secs(max_wait)).await
}

async fn read(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn read_json(response: Response) -> Value {
    let (status, body) = read(response).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn answer_comes_a_settle_after_the_drop() {
    let fixture = mk_terminating(Some(true));
    let holds = Arc::clone(&fixture.holds);
    let running = tokio::spawn(async move { read_json(ask(&holds, 60).await).await });
    // Longer than a turn: the loop has to go on.
    tokio::time::sleep(Duration::from_secs(28)).await;
    fixture
        .holds
        .world
        .on_endpoint_slice(Event::Apply(mk_slice(false)), Instant::now());
    tokio::time::sleep(Duration::from_millis(4_900)).await;
    assert!(
        !running.is_finished(),
        "answered before the settle was over"
    );
    let answer = running.await.unwrap();
    assert_eq!(answer["verdict"], "go");
    assert_eq!(answer["reason"], "settled");
    assert_eq!(
        answer["awaiting"],
        json!(["Service shop/web: endpoint dropped 5.0 s ago"])
    );
    let held = answer["heldSeconds"].as_f64().unwrap();
    assert!((33.0..33.2).contains(&held), "{held}");
}

#[tokio::test(start_paused = true)]
async fn longest_wait_ends_it_and_says_what_was_awaited() {
    let fixture = mk_terminating(Some(true));
    let answer = read_json(ask(&fixture.holds, 40).await).await;
    assert_eq!(answer["reason"], "max-wait");
    assert_eq!(
        answer["awaiting"],
        json!(["Service shop/web: endpoint still ready"])
    );
    assert!((39.0..=41.0).contains(&answer["heldSeconds"].as_f64().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn pod_that_is_not_terminating_is_a_conflict() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", None)),
        node_ready: vec!["True"],
        ..Api::default()
    });
    let (status, body) = read(ask(&fixture.holds, 60).await).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(
        body,
        "the pod is not terminating: delete it first, then ask"
    );
}

#[tokio::test(start_paused = true)]
async fn failing_node_gives_its_short_wait() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", None)),
        node_ready: vec!["False"],
        ..Api::default()
    });
    let answer = read_json(ask(&fixture.holds, 60).await).await;
    assert_eq!(answer["reason"], "node");
    let held = answer["heldSeconds"].as_f64().unwrap();
    assert!((5.0..6.0).contains(&held), "{held}");
}

#[tokio::test(start_paused = true)]
async fn api_server_that_cannot_be_asked_means_ask_again() {
    let fixture = mk_fixture(Api {
        down: true,
        ..Api::default()
    });
    let response = ask(&fixture.holds, 60).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test(start_paused = true)]
async fn closing_replica_says_so_at_once() {
    let fixture = mk_terminating(Some(true));
    let holds = Arc::clone(&fixture.holds);
    let running = tokio::spawn(async move { ask(&holds, 60).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    fixture.holds.closing.cancel();
    let response = running.await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, body) = read(response).await;
    assert_eq!(
        (status, body.as_str()),
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "this replica is shutting down: ask again"
        )
    );
}

#[tokio::test]
async fn nobody_is_answered_without_a_token() {
    let fixture = mk_terminating(Some(true));
    let router = crate::confirmer::router(
        Verifier::new(fixture.holds.client.clone()),
        Arc::clone(&fixture.holds),
        Duration::from_mins(30),
    );
    let request = Request::get("/v1/drain-delay?max-wait=1s")
        .body(Body::empty())
        .unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

/// The head's time limit must not cut off a long answer, and a client that goes must not leave its hold behind.
#[tokio::test]
async fn hold_outlasts_the_servers_limits_and_ends_with_its_client() {
    let fixture = mk_terminating(Some(true));
    let holds = Arc::clone(&fixture.holds);
    let route = get(async move || ask(&holds, 60).await);
    let limits = Limits {
        head: Duration::from_millis(50),
        ..Limits::CONFIRMER
    };
    let bound = Bound::bind("test", ([127, 0, 0, 1], 0).into(), limits).unwrap();
    let address = bound.address();
    let shutdown = CancellationToken::new();
    let served = bound.spawn_plain(Router::new().route("/", route), shutdown.clone());
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: gate\r\n\r\n")
        .await
        .unwrap();
    let in_progress = || fixture.holds.metrics.holds_in_progress.get();
    let until = async |wanted| {
        while in_progress() != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(10);
    tokio::time::timeout(patience, until(1)).await.unwrap();
    // Several times the limit, without an end or an answer.
    let early = tokio::time::timeout(Duration::from_millis(300), client.read_u8()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(in_progress(), 1);
    drop(client);
    tokio::time::timeout(patience, until(0)).await.unwrap();
    shutdown.cancel();
    served.join().await;
}
