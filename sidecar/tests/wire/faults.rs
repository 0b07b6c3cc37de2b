//! A confirmer that is dead, slow or wrong.

use std::time::{Duration, Instant};

use serde_json::json;
use sidecar::contract::{HOLD_TURN, ReleaseReason as R};

use crate::confirmer::{Confirmer, Reply, go, hold};
use crate::pod::{FALLBACK, Pod};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Holds for good.
fn holds() -> Confirmer {
    Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::Silence,
    })
}

#[test]
fn confirmer_that_cannot_be_asked_means_the_fallback_and_no_release_file() {
    let confirmer = holds();
    let stranger = holds();
    let address = confirmer.address.to_string();
    let cases = [
        (
            "refused",
            Some("127.0.0.1:1"),
            Some(&confirmer.ca),
            "Connection refused",
        ),
        ("no address", None, Some(&confirmer.ca), "names no address"),
        (
            "no port",
            Some("127.0.0.1"),
            Some(&confirmer.ca),
            "failed to connect to 127.0.0.1",
        ),
        ("no CA", Some(&*address), None, "holds no certificate"),
        (
            "another CA",
            Some(&*address),
            Some(&stranger.ca),
            "certificate",
        ),
    ];
    std::thread::scope(|scope| {
        for (name, addresses, ca, logged) in cases {
            scope.spawn(move || {
                let mut pod = Pod::new();
                pod.start_at(addresses, ca.map(String::as_str), &[]);
                pod.plain_hook().ends_after(FALLBACK);
                pod.logged("Let go reason=fallback");
                pod.logged(logged);
                assert_eq!(pod.go_file(), None, "{name}");
                let said = pod.log().matches("Confirmer can't be asked").count();
                assert!(
                    said <= 2,
                    "{name}: once for the hello, once for the hold, not {said} times"
                );
            });
        }
    });
}

#[test]
fn bad_configuration_does_not_keep_the_waiter_from_starting() {
    let mut pod = Pod::new();
    let args = ["--server-name", "not a name"];
    pod.start_at(
        Some("127.0.0.1:1"),
        Some("-----BEGIN CERTIFICATE-----\nbanana\n-----END CERTIFICATE-----\n"),
        &args,
    );
    pod.logged("PRESTOP_GATE_CA");
    pod.plain_hook().ends_after(FALLBACK);
}

#[test]
fn missing_token_means_the_fallback_until_it_is_there() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::new();
    let token = std::fs::read(pod.token_file()).unwrap();
    std::fs::remove_file(pod.token_file()).unwrap();
    pod.start(&confirmer, &[]);
    pod.plain_hook().ends_after(FALLBACK);
    pod.logged("failed to read the token");
    std::fs::write(pod.token_file(), token).unwrap();
    pod.plain_hook().ends_after(ms(0));
}

#[test]
fn answers_that_make_no_sense_mean_the_fallback() {
    let verdict = |verdict: &str| json!({"protocol": 2, "verdict": verdict, "reason": "confirmed"});
    let answers = [
        verdict("sing"),
        json!([]),
        json!({"protocol": 1, "verdict": "go", "reason": "because"}),
    ];
    std::thread::scope(|scope| {
        for answer in answers {
            scope.spawn(move || {
                let script = answer.clone();
                let pod = Pod::with(&Confirmer::start(move |_| Reply::Answer(script.clone())));
                pod.plain_hook().ends_after(FALLBACK);
                assert_eq!(pod.go_file(), None, "{answer}");
            });
        }
    });
}

#[test]
fn answer_without_end_is_not_read_to_its_end() {
    let endless = "x".repeat(1 << 20);
    let confirmer = Confirmer::start(move |_| {
        Reply::Answer(json!({"protocol": 1, "verdict": "go", "reason": "settled", "a": endless}))
    });
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(FALLBACK);
    pod.logged("length limit exceeded");
}

#[test]
fn confirmer_that_is_not_ready_is_asked_again() {
    let confirmer = Confirmer::start(|question| match question.number {
        0..3 => Reply::Status(503),
        3 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(2500), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    assert_eq!(pod.plain_hook().ended().code, Some(0));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
    pod.logged("503");
    pod.logged("Confirmer answers again");
}

#[test]
fn slow_first_answer_is_waited_for() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::After(ms(1500), hold(60.0)),
        _ => Reply::After(ms(1500), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(3000));
}

#[test]
fn confirmer_that_says_nothing_means_the_fallback() {
    let confirmer = Confirmer::start(|_| Reply::Silence);
    Pod::with(&confirmer).plain_hook().ends_after(FALLBACK);
}

#[test]
fn confirmer_lost_during_a_hold_means_the_fallback_from_then_on() {
    let confirmer = holds();
    let pod = Pod::with(&confirmer);
    let mut hook = pod.plain_hook();
    hook.is_held_for(FALLBACK + ms(1000));
    drop(confirmer);
    let lost = Instant::now();
    hook.is_held_for(FALLBACK + ms(2500));
    assert_eq!(hook.ended().code, Some(0));
    assert!(lost.elapsed() >= FALLBACK, "{:?}", lost.elapsed());
    assert_eq!(
        pod.go_file().unwrap().reason,
        R::Fallback,
        "the pod was seen terminating"
    );
}

/// Flags of a waiter and a hook that are given time.
const LONG: [&str; 2] = ["--max-wait", "60"];

#[test]
fn confirmer_whose_host_dies_during_a_hold_is_noticed_after_11_seconds_and_another_is_asked() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        1 => Reply::Vanish,
        _ => Reply::Answer(go("settled")),
    });
    let mut pod = Pod::new();
    pod.start(&confirmer, &LONG);
    pod.hook::<&str>(&LONG, &[]).ends_after(ms(11_000));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
}

#[test]
fn confirmer_that_freezes_during_a_hold_is_noticed_when_its_turn_is_over() {
    let confirmer = holds();
    let mut pod = Pod::new();
    pod.start(&confirmer, &LONG);
    let mut hook = pod.hook::<&str>(&LONG, &[]);
    let noticed = HOLD_TURN + ms(5000);
    hook.is_held_for(noticed);
    hook.ends_after(noticed + FALLBACK);
    pod.logged("failed to get an answer to /v1/hold within 30 s");
    assert_eq!(pod.go_file().unwrap().reason, R::Fallback);
}

#[test]
fn connection_that_ends_between_or_under_questions_is_no_failure() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 | 2 | 4 => Reply::Answer(hold(60.0)),
        1 | 3 => Reply::Last(hold(60.0)),
        5 => Reply::HangUp,
        _ => Reply::Answer(go("settled")),
    });
    let pod = Pod::with(&confirmer);
    assert_eq!(pod.plain_hook().ended().code, Some(0));
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
    assert!(!pod.log().contains("can't be asked"));
}

#[test]
fn addresses_are_tried_in_order_and_names_are_resolved() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::new();
    let addresses = format!("127.0.0.1:1, localhost:{}", confirmer.address.port());
    pod.start_at(Some(&addresses), Some(&confirmer.ca), &[]);
    pod.plain_hook().ends_after(ms(0));
}

#[test]
fn hello_is_said_until_it_worked() {
    let hello = |number| {
        if number < 2 {
            Reply::Status(500)
        } else {
            Reply::Answer(json!({"protocol": 1, "version": "9"}))
        }
    };
    let confirmer =
        Confirmer::start_with_hello(move |question| hello(question.number), |_| Reply::Silence);
    let pod = Pod::with(&confirmer);
    pod.logged("Said hello to the confirmer version=\"9\"");
    let hellos = confirmer.hellos();
    assert_eq!(hellos.len(), 3);
    assert_eq!(
        hellos[0].body,
        json!({"protocol": 1, "version": env!("CARGO_PKG_VERSION")})
    );
}
