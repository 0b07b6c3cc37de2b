//! What is dead, slow, wrong or hostile.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
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

// The confirmer.

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

// The waiter.

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
    let pod = Pod::new();
    let listener = UnixListener::bind(pod.volume().join("sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut hook = pod.plain_hook();
    let mut count = 0;
    while hook.is_running() {
        match listener.accept() {
            Ok(turned_away) => drop((turned_away, count += 1)),
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

// Whoever talks to the socket.

#[test]
fn garbage_on_the_socket_hurts_nobody() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::with(&confirmer);
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![b'x'; 1 << 20],
        vec![0; 100],
        b"{\"type\":\"hello\",\"protocol\":1,\"container\":\"a\"}\n\xff\n".to_vec(),
        b"{\"type\":\"hello\"}\n".to_vec(),
    ] {
        let mut stream = UnixStream::connect(pod.volume().join("sock")).unwrap();
        stream.set_read_timeout(Some(ms(10_000))).unwrap();
        let _ = stream.write_all(&garbage);
        let closed = std::iter::from_fn(|| match stream.read(&mut [0; 512]) {
            Ok(0) => None,
            Ok(_) => Some(true),
            Err(error) => (error.kind() == std::io::ErrorKind::WouldBlock).then_some(false),
        });
        assert!(
            closed.take(10).all(|read| read),
            "the connection must be closed"
        );
    }
    pod.plain_hook().ends_after(ms(0));
    assert!(pod.waiter().try_wait().unwrap().is_none());
}

#[test]
fn hooks_get_their_turn_after_a_flood_of_idle_connections() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let pod = Pod::with(&confirmer);
    let flood: Vec<_> = (0..200)
        .filter_map(|_| UnixStream::connect(pod.volume().join("sock")).ok())
        .collect();
    pod.logged("Turned connections away");
    let said = pod.log().matches("Turned connections away").count();
    assert!(said < 5, "not once for each: {said}");
    pod.plain_hook().ends_after(FALLBACK);
    drop(flood);
    pod.plain_hook().ends_after(ms(0));
}

#[test]
fn killed_hook_is_noticed_and_the_next_is_served() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Silence,
        _ => Reply::Answer(go("no-attachment")),
    });
    let pod = Pod::with(&confirmer);
    let hook = pod.plain_hook();
    eventually("the question", || confirmer.holds().pop());
    signal(hook.pid(), "TERM");
    assert_eq!(hook.ended().code, None);
    pod.logged("Hold abandoned");
    pod.plain_hook().ends_after(ms(0));
}
