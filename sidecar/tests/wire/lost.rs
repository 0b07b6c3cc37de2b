//! A waiter that dies, freezes, comes late or comes back.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use serde_json::json;
use sidecar::contract::ReleaseReason as R;

use crate::confirmer::{Confirmer, Reply, go, hold};
use crate::pod::{FALLBACK, Pod, eventually, signal};

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
fn waiter_killed_during_a_hold_means_the_fallback() {
    let confirmer = holds();
    let mut pod = Pod::with(&confirmer);
    let hook = pod.plain_hook();
    pod.logged("Pod is terminating");
    pod.kill_waiter();
    hook.ends_after(FALLBACK);
}

#[test]
fn waiter_killed_late_gets_a_second_to_come_back() {
    let confirmer = holds();
    let mut pod = Pod::with(&confirmer);
    let mut hook = pod.plain_hook();
    hook.is_held_for(ms(3000));
    pod.kill_waiter();
    let killed = Instant::now();
    assert_eq!(hook.ended().code, Some(0));
    assert!(
        killed.elapsed() >= ms(950) && killed.elapsed() < ms(2500),
        "{:?}",
        killed.elapsed()
    );
}

#[test]
fn release_file_written_while_the_hook_is_on_its_own_counts() {
    let confirmer = holds();
    let mut pod = Pod::with(&confirmer);
    let mut hook = pod.plain_hook();
    pod.logged("Pod is terminating");
    let log = pod.log();
    let epoch = log
        .split("epoch=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    pod.kill_waiter();
    let go = |epoch: &str| json!({"epoch": epoch, "reason": "settled"}).to_string();
    std::fs::write(pod.volume().join("go"), go("another")).unwrap();
    std::thread::sleep(ms(300));
    assert!(hook.is_running(), "a file of another epoch is none");
    std::fs::write(pod.volume().join("go"), go(epoch)).unwrap();
    let ended = hook.ended();
    assert!(ended.after < FALLBACK, "{ended:?}");
}

/// Flags of a hook that gives a waiter on a busy machine time to come up.
const PATIENT: [&str; 2] = ["--fallback-wait", "6"];

#[test]
fn waiter_that_comes_back_takes_over() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 | 2 => Reply::Answer(hold(60.0)),
        1 => Reply::Silence,
        _ => Reply::After(ms(1000), go("settled")),
    });
    let mut pod = Pod::with(&confirmer);
    let hook = pod.hook::<&str>(&PATIENT, &[]);
    eventually("the second question", || confirmer.holds().get(1).cloned());
    pod.kill_waiter();
    pod.start(&confirmer, &[]);
    let ended = hook.ended();
    assert!(
        ended.code == Some(0) && ended.after < Duration::from_secs(6),
        "{ended:?}"
    );
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
    let holds = confirmer.holds();
    assert_ne!(holds[0].body["epoch"], holds[2].body["epoch"]);
}

#[test]
fn new_waiter_forgets_an_earlier_release() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(go("no-attachment")),
        1 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(2500), go("settled")),
    });
    let mut pod = Pod::with(&confirmer);
    pod.plain_hook().ends_after(ms(0));
    pod.kill_waiter();
    assert!(pod.go_file().is_some());
    pod.start(&confirmer, &[]);
    assert_eq!(pod.go_file(), None);
    pod.plain_hook().ends_after(ms(2500));
}

#[test]
fn hook_finds_a_waiter_that_comes_up_later() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(1000), go("settled")),
    });
    let mut pod = Pod::new();
    let hook = pod.hook::<&str>(&PATIENT, &[]);
    std::thread::sleep(ms(300));
    pod.start(&confirmer, &[]);
    let ended = hook.ended();
    assert!(
        ended.code == Some(0) && ended.after < Duration::from_secs(6),
        "{ended:?}"
    );
    assert_eq!(pod.go_file().unwrap().reason, R::Settled);
}

#[test]
fn hook_without_any_waiter_holds_the_fallback_or_its_bounds() {
    let pod = Pod::new();
    std::thread::scope(|scope| {
        for (flags, expected) in [
            (vec![], FALLBACK),
            (vec!["--min-hold", "3.5"], ms(3500)),
            (vec!["--liveness-cap", "0.5"], ms(500)),
            (vec!["--fallback-wait", "0"], ms(1000)),
        ] {
            let pod = &pod;
            scope.spawn(move || pod.hook::<&str>(&flags, &[]).ends_after(expected));
        }
    });
}

#[test]
fn waiter_that_is_frozen_is_no_waiter() {
    let confirmer = holds();
    let mut pod = Pod::with(&confirmer);
    signal(pod.waiter().id(), "STOP");
    pod.plain_hook().ends_after(FALLBACK);
}

#[test]
fn waiter_that_turns_a_hook_away_is_asked_gently() {
    is_asked_gently(b"");
}

#[test]
fn waiter_that_dies_beside_a_release_file_of_another_is_asked_gently() {
    is_asked_gently(b"{\"type\":\"welcome\",\"epoch\":\"this\"}\n");
}

/// Ends each connection of a hook, the first after this greeting, beside a release file where that is a welcome.
fn is_asked_gently(mut greeting: &[u8]) {
    let pod = Pod::new();
    if !greeting.is_empty() {
        let go = json!({"epoch": "another", "reason": "settled"}).to_string();
        std::fs::write(pod.volume().join("go"), go).unwrap();
    }
    let listener = UnixListener::bind(pod.volume().join("sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut hook = pod.plain_hook();
    let mut count = 0;
    while hook.is_running() {
        match listener.accept() {
            Ok((mut turned_away, _)) => {
                turned_away
                    .write_all(std::mem::take(&mut greeting))
                    .unwrap();
                count += 1;
            }
            Err(_) => std::thread::sleep(ms(1)),
        }
    }
    hook.ends_after(FALLBACK);
    assert!(
        (2..=45).contains(&count),
        "20 times a second at most, not {count} in 2"
    );
}

#[test]
fn mute_waiter_is_given_up_at_the_cap() {
    let confirmer = holds();
    let mut pod = Pod::with(&confirmer);
    let hook = pod.hook::<&str>(&["--max-wait", "0"], &[]);
    pod.logged("Pod is terminating");
    signal(pod.waiter().id(), "STOP");
    hook.ends_after(ms(5000));
}
