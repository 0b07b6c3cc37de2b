//! Why hooks run, and what is answered where nothing is held.

use super::*;

/// Neither a cache nor `resourceVersion=0` may say that a pod isn't terminating.
#[tokio::test(start_paused = true)]
async fn pod_is_read_from_etcd() {
    let fixture = mk_terminating(Some(true));
    fixture
        .turn(first())
        .await
        .expect("the turn must be answered");
    let asked = fixture.api.lock().expect("unpoisoned").asked.clone();
    assert_eq!(asked, ["/api/v1/namespaces/shop/pods/web-0"]);
}

/// S17: a container restart is no deletion, whatever a watch says later.
#[tokio::test(start_paused = true)]
async fn pod_that_is_not_deleting_on_a_well_node_is_a_restart_after_a_second_look() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", None)),
        node_ready: vec!["True"],
        ..Api::default()
    });
    let began = Instant::now();
    let response = fixture
        .turn(first())
        .await
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Restart, Some(ReleaseReason::Restart))
    );
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    let looks = fixture
        .api
        .lock()
        .expect("unpoisoned")
        .asked
        .iter()
        .filter(|path| path.contains("/nodes/"))
        .count();
    assert_eq!(looks, 2);
}

/// S22: the kubelet ends the pod, and the API knows of no deletion.
#[tokio::test(start_paused = true)]
async fn node_that_is_failing_at_either_look_gives_a_short_wait() {
    for node_ready in [vec!["False"], vec!["True", "False"], vec!["Unknown"]] {
        let fixture = mk_fixture(Api {
            pod: Some(mk_pod("u1", None)),
            node_ready,
            ..Api::default()
        });
        let response = fixture
            .turn(first())
            .await
            .expect("the turn must be answered");
        assert_eq!(
            outcome(&response),
            (Verdict::Wait, Some(ReleaseReason::Node))
        );
        assert!(response.seconds_left <= 4.9, "{}", response.seconds_left);
    }
}

#[tokio::test(start_paused = true)]
async fn gone_pod_and_one_with_another_uid_wait_for_the_fallback() {
    for pod in [None, Some(mk_pod("u2", None))] {
        let fixture = mk_fixture(Api {
            pod,
            ..Api::default()
        });
        let response = fixture
            .turn(first())
            .await
            .expect("the turn must be answered");
        assert_eq!(
            outcome(&response),
            (Verdict::Wait, Some(ReleaseReason::Forced))
        );
        assert!(
            (response.seconds_left - 14.9).abs() < 0.001,
            "{}",
            response.seconds_left
        );
    }
}

#[tokio::test(start_paused = true)]
async fn stale_watch_never_turns_a_deletion_into_a_restart() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", Some(100))),
        node_ready: vec!["True"],
        ..Api::default()
    });
    fixture.sync(Some(&mk_pod("u1", None)), Some(true));
    assert_eq!(
        outcome(&fixture.turn(first()).await.expect("answered")),
        (Verdict::Hold, None)
    );
}

#[tokio::test(start_paused = true)]
async fn watch_that_says_deleting_holds_while_the_api_server_is_down_and_one_that_does_not_is_no_proof()
 {
    let fixture = mk_fixture(Api {
        down: true,
        ..Api::default()
    });
    fixture.sync(Some(&mk_pod("u1", Some(100))), Some(true));
    assert_eq!(
        outcome(&fixture.turn(first()).await.expect("answered")),
        (Verdict::Hold, None)
    );
    fixture.set_pod(&mk_pod("u1", None));
    assert!(matches!(
        fixture.turn(first()).await,
        Err(Error::Unclassified(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn terminating_pod_that_no_complete_watch_knows_is_looked_for() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", Some(100))),
        ..Api::default()
    });
    fixture.sync(None, Some(true));
    let running = fixture.spawn(later());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!running.is_finished());
    fixture.api.lock().expect("unpoisoned").pod = None;
    let gone = Instant::now();
    let response = running
        .await
        .expect("no panic")
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Wait, Some(ReleaseReason::Forced))
    );
    assert!(
        gone.elapsed() <= super::super::ASK_EVERY,
        "{:?}",
        gone.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn numbers_that_no_hold_has_served_are_refused() {
    let fixture = mk_fixture(Api::default());
    for elapsed_seconds in [-1.0, f64::NAN, 1e18, f64::INFINITY] {
        let error = fixture
            .turn(HoldRequest {
                elapsed_seconds,
                ..first()
            })
            .await
            .expect_err("must be refused");
        let expected = format!(
            "elapsedSeconds is {elapsed_seconds}; allowed is a number of seconds from 0 to 86400"
        );
        assert_eq!(error.to_string(), expected);
    }
}
