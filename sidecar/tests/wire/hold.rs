//! What the confirmer says, and what becomes of the hooks.

use std::fs;
use std::time::Duration;

use serde_json::json;
use sidecar::contract::ReleaseReason as R;

use crate::confirmer::{Confirmer, Reply, go, hold, restart, wait};
use crate::pod::{FALLBACK, Pod, TOKEN, eventually};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Holds, and on the second question lets go after a while.
fn lets_go_after(pause: Duration, reason: &'static str) -> Confirmer {
    Confirmer::start(move |question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::After(pause, go(reason)),
    })
}

#[test]
fn hooks_are_held_until_the_confirmer_says_go() {
    let confirmer = lets_go_after(ms(3000), "confirmed");
    let pod = Pod::with(&confirmer);
    let mut hooks = [
        pod.plain_hook(),
        pod.plain_hook(),
        pod.hook(&["--liveness-cap", "1"], &["true"]),
    ];
    for hook in &mut hooks {
        hook.is_held_for(ms(2500));
    }
    for hook in hooks {
        hook.ends_after(ms(2500));
    }
    let go = pod.go_file().unwrap();
    assert_eq!(go.reason, R::Confirmed);
    assert!(
        pod.log().contains(&format!("epoch={:?}", go.epoch)),
        "the file is of this waiter's epoch"
    );
    pod.logged("Released reason=confirmed seconds=3.");
    pod.logged("Awaiting [\"endpoint of service a\"]");
    assert!(
        !pod.log().contains("s3cret"),
        "the token must never be logged"
    );
}

#[test]
fn questions_carry_the_token_the_waits_and_the_state() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(json!({"protocol": 1, "verdict": "hold", "secondsLeft": 60,
            "progress": {"slice": {"ageSeconds": 100.0}}})),
        1 => Reply::After(ms(700), hold(60.0)),
        _ => Reply::Answer(go("settled")),
    });
    let mut pod = Pod::new();
    pod.start(&confirmer, &["--settle", "1.5", "--min-hold", "0.25"]);
    let hook = pod.plain_hook();
    eventually("the second question", || confirmer.holds().get(1).cloned());
    fs::write(pod.token_file(), "renewed").unwrap();
    hook.ends_after(ms(700));

    let holds = confirmer.holds();
    assert_eq!(holds.len(), 3);
    let [first, second, third] = [0, 1, 2].map(|number: usize| &holds[number].body);
    let params = json!({"originalGraceSeconds": 5.0, "maxWaitSeconds": 8.0, "minHoldSeconds": 0.25,
        "fallbackWaitSeconds": 2.0, "settleSeconds": 1.5, "hostNetwork": false});
    assert_eq!(first["params"], params);
    assert_eq!(
        (
            &first["protocol"],
            &first["terminating"],
            &first["progress"]
        ),
        (&json!(1), &json!(false), &json!({}))
    );
    assert_eq!(second["terminating"], json!(true));
    let age = second["progress"]["slice"]["ageSeconds"].as_f64().unwrap();
    assert!(age > 100.0 && age < 110.0, "echoed and aged: {age}");
    assert_eq!(third["progress"], json!({}), "the answer before had none");
    let elapsed = [first, second, third].map(|body| body["elapsedSeconds"].as_f64().unwrap());
    assert!(
        elapsed[0] < 1.0 && elapsed[0] < elapsed[1] && elapsed[1] + 0.7 <= elapsed[2],
        "{elapsed:?}"
    );
    assert_eq!(holds[1].authorization, format!("Bearer {TOKEN}"));
    assert_eq!(
        holds[2].authorization, "Bearer renewed",
        "the token is read afresh for each question"
    );
}

#[test]
fn pod_that_nothing_points_at_goes_at_once() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(0));
    assert_eq!(pod.go_file().unwrap().reason, R::NoAttachment);
}

#[test]
fn restart_is_let_go_without_a_release_file_and_the_next_delete_is_held() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(restart()),
        1 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(2500), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(0));
    pod.logged("Let go reason=restart");
    assert_eq!(pod.go_file(), None);
    pod.plain_hook().ends_after(ms(2500));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
    let holds = confirmer.holds();
    assert_eq!(holds[1].body["terminating"], json!(false), "a new hold");
    assert!(
        holds[1].body["elapsedSeconds"].as_f64().unwrap() < 1.0,
        "with its own clock"
    );
}

#[test]
fn restart_does_not_let_go_a_hook_that_came_after_the_question() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::After(ms(1500), restart()),
        1 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(2000), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    let restarted = pod.plain_hook();
    eventually("the question", || confirmer.holds().pop());
    let mut deleted = pod.plain_hook();
    restarted.ends_after(ms(1500));
    assert!(deleted.is_running());
    deleted.ends_after(ms(3000));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
}

#[test]
fn wait_is_held_for_its_time() {
    for (reason, released) in [("node", None), ("forced", Some(R::Forced))] {
        let confirmer = Confirmer::start(move |_| Reply::Answer(wait(reason, 1.0)));
        let pod = Pod::with(&confirmer);
        pod.plain_hook().ends_after(ms(1000));
        pod.logged(&format!("reason={reason}"));
        assert_eq!(pod.go_file().map(|go| go.reason), released, "{reason}");
        assert_eq!(confirmer.holds().len(), 1, "nothing more to learn");
    }
}

#[test]
fn hold_is_over_when_no_time_is_left() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(2.5)),
        _ => Reply::Silence,
    });
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(2500));
    assert_eq!(pod.go_file().unwrap().reason, R::MaxWait);
}

#[test]
fn confirmer_that_answers_at_once_is_not_asked_in_a_circle() {
    let confirmer = Confirmer::start(|question| {
        let over = question.body["elapsedSeconds"].as_f64().unwrap() > 2.0;
        Reply::Answer(if over { go("settled") } else { hold(60.0) })
    });
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(2000));
    let count = confirmer.holds().len();
    assert!(
        (2..=10).contains(&count),
        "4 a second at most, not {count} in 2"
    );
}

#[test]
fn replaced_sleep_is_the_shortest_hold() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::new();
    pod.start(&confirmer, &["--min-hold", "3"]);
    pod.hook::<&str>(&["--min-hold", "3"], &[])
        .ends_after(ms(3000));
    assert!(
        confirmer.holds().len() < 5,
        "asked at a gentle pace: {}",
        confirmer.holds().len()
    );
}

#[test]
fn later_hooks_go_at_once_after_a_release_with_and_without_the_waiter() {
    let confirmer = lets_go_after(ms(100), "settled");
    let mut pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(100));
    let asked = confirmer.holds().len();
    pod.plain_hook().ends_after(ms(0));
    pod.kill_waiter();
    pod.plain_hook().ends_after(ms(0));
    assert_eq!(confirmer.holds().len(), asked);
}

#[test]
fn terminating_pods_hold_survives_its_hooks() {
    let confirmer = lets_go_after(ms(4000), "settled");
    let pod = Pod::with(&confirmer);
    let first = pod.plain_hook();
    pod.logged("Pod is terminating");
    drop(first);
    pod.logged("Hook left hook=");
    let mut second = pod.plain_hook();
    second.is_held_for(ms(1000));
    assert_eq!(
        confirmer.holds().len(),
        2,
        "the second hook joined the hold under way"
    );
    assert_eq!(second.ended().code, Some(0));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
}

#[test]
fn hold_is_abandoned_with_its_last_hook_while_the_pod_may_live_on() {
    let confirmer = Confirmer::start(|_| Reply::Silence);
    let pod = Pod::with(&confirmer);
    pod.hook(&["--liveness-cap", "0.5"], &["true"])
        .ends_after(ms(500));
    pod.logged("Hold abandoned");
    assert_eq!(pod.go_file(), None);
    pod.plain_hook().ends_after(FALLBACK);
}
