//! Several replicas on one Secret.

use std::sync::atomic::Ordering;

use http::Method;

use super::fixture::*;
use crate::fake_api::FakeApi;
use crate::secrets::*;

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
