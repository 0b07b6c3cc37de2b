//! Turns against an API server that answers as told, with the clock paused.

use std::time::Duration;

use kube::runtime::watcher::Event;
use sidecar::contract::{HoldRequest, ReleaseReason, Verdict};
use tokio::time::Instant;

use self::fixture::*;
use super::Error;

mod classes;
mod drain_delay;
mod fixture;

#[tokio::test(start_paused = true)]
async fn deleting_pod_is_held_and_the_first_answer_comes_at_once() {
    let fixture = mk_terminating(Some(true));
    let began = Instant::now();
    let response = fixture
        .turn(first())
        .await
        .expect("the turn must be answered");
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(outcome(&response), (Verdict::Hold, None));
    assert_eq!(
        response.awaiting,
        ["Service shop/web: endpoint still ready"]
    );
    assert!(
        (55.0..=60.0).contains(&response.seconds_left),
        "{}",
        response.seconds_left
    );
}

#[tokio::test(start_paused = true)]
async fn release_comes_a_settle_after_the_drop_and_not_before() {
    let fixture = mk_terminating(Some(true));
    let running = fixture.spawn(later());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!running.is_finished());
    fixture
        .holds
        .world
        .on_endpoint_slice(Event::Apply(mk_slice(false)), Instant::now());
    tokio::time::sleep(Duration::from_millis(4_900)).await;
    assert!(
        !running.is_finished(),
        "released before the settle was over"
    );
    tokio::time::sleep(Duration::from_millis(200)).await;
    let response = running
        .await
        .expect("no panic")
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::Settled))
    );
    assert_eq!(
        response.awaiting,
        ["Service shop/web: endpoint dropped 5.0 s ago"]
    );
}

#[tokio::test(start_paused = true)]
async fn pod_that_nothing_points_at_goes_with_the_first_answer() {
    let deleting = mk_pod("u1", Some(100));
    let fixture = mk_fixture(Api {
        pod: Some(deleting.clone()),
        slices: Some(Vec::new()),
        ..Api::default()
    });
    fixture.sync(Some(&deleting), None);
    grow_old().await;
    let response = fixture
        .turn(first())
        .await
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::NoAttachment))
    );
}

/// A watch may have died without a word: what it doesn't know is asked for before it counts as nothing.
#[tokio::test(start_paused = true)]
async fn endpoint_that_only_the_api_server_knows_holds() {
    let deleting = mk_pod("u1", Some(100));
    let slices = Some(vec![
        serde_json::to_value(mk_slice(true)).expect("the slice must encode"),
    ]);
    let fixture = mk_fixture(Api {
        pod: Some(deleting.clone()),
        slices,
        ..Api::default()
    });
    fixture.sync(Some(&deleting), None);
    grow_old().await;
    let response = fixture
        .turn(first())
        .await
        .expect("the turn must be answered");
    assert_eq!(outcome(&response), (Verdict::Hold, None));
}

#[tokio::test(start_paused = true)]
async fn pod_without_endpoints_that_nobody_can_confirm_goes_after_the_fallback() {
    let fixture = mk_terminating(None);
    grow_old().await;
    let began = Instant::now();
    let response = fixture
        .turn(later())
        .await
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::NoAttachment))
    );
    assert_eq!(began.elapsed(), Duration::from_secs(14));
}

#[tokio::test(start_paused = true)]
async fn replica_without_complete_lists_holds() {
    let fixture = mk_fixture(Api {
        pod: Some(mk_pod("u1", Some(100))),
        ..Api::default()
    });
    grow_old().await;
    assert_eq!(
        outcome(&fixture.turn(first()).await.expect("answered")),
        (Verdict::Hold, None)
    );
}

#[tokio::test(start_paused = true)]
async fn second_delete_with_now_ends_a_running_turn_at_once() {
    let fixture = mk_terminating(Some(true));
    let running = fixture.spawn(later());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    fixture.set_pod(&mk_pod("u1", Some(1)));
    let response = running
        .await
        .expect("no panic")
        .expect("the turn must be answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::Forced))
    );
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn hold_ends_at_the_longest_wait_though_traffic_still_comes() {
    let fixture = mk_terminating(Some(true));
    let response = fixture
        .turn(HoldRequest {
            elapsed_seconds: 50.0,
            ..later()
        })
        .await
        .expect("answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::MaxWait))
    );
    assert_eq!(
        response.awaiting,
        ["Service shop/web: endpoint still ready"]
    );
}

#[tokio::test(start_paused = true)]
async fn turn_without_news_ends_after_25_seconds() {
    let fixture = mk_terminating(Some(true));
    let began = Instant::now();
    assert_eq!(
        outcome(&fixture.turn(later()).await.expect("answered")),
        (Verdict::Hold, None)
    );
    assert_eq!(began.elapsed(), Duration::from_secs(25));
}

#[tokio::test(start_paused = true)]
async fn closing_replica_ends_its_turns_at_once() {
    let fixture = mk_terminating(Some(true));
    let running = fixture.spawn(later());
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    fixture.holds.closing.cancel();
    let response = running
        .await
        .expect("no panic")
        .expect("the turn must be answered");
    assert_eq!(
        (outcome(&response), began.elapsed()),
        ((Verdict::Hold, None), Duration::ZERO)
    );
}

#[tokio::test(start_paused = true)]
async fn another_replica_goes_on_counting_a_settle_that_it_did_not_see_begin() {
    let fixture = mk_terminating(Some(false));
    let progress = [(
        "Service shop/web".to_owned(),
        sidecar::contract::Evidence { age_seconds: 3.0 },
    )]
    .into();
    let began = Instant::now();
    let response = fixture
        .turn(HoldRequest {
            progress,
            ..later()
        })
        .await
        .expect("answered");
    assert_eq!(
        outcome(&response),
        (Verdict::Go, Some(ReleaseReason::Settled))
    );
    assert!(
        began.elapsed() <= Duration::from_millis(2_100),
        "{:?}",
        began.elapsed()
    );
}
