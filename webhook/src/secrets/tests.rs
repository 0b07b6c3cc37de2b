//! Against an API server in memory, with paused time: the wall clock goes with it.

mod agreement;
mod fixture;

use std::sync::atomic::Ordering;

use http::Method;
use k8s_openapi::ByteString;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

use self::fixture::*;
use super::*;
use crate::fake_api::FakeApi;

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
async fn broken_secret_is_restored_from_what_is_served() {
    for broken in ["tls.key", "tls.crt", "ca.crt", "ca.key"] {
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
        assert_eq!(stored_identity(&api), before, "{broken}");
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
