//! The container's own preStop around the wait.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::confirmer::{Confirmer, Reply, go, hold};
use crate::pod::{Pod, eventually};

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A pod that is let go at once.
fn free() -> (Confirmer, Pod) {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let pod = Pod::with(&confirmer);
    (confirmer, pod)
}

#[test]
fn exit_code_and_output_are_the_originals() {
    let (_confirmer, pod) = free();
    for flags in [&[][..], &["--original-first"]] {
        let ended = pod
            .hook(flags, &["sh", "-c", "echo out; echo err >&2; exit 7"])
            .ended();
        assert_eq!(
            (ended.code, &*ended.stdout, ended.stderr.as_str()),
            (Some(7), &b"out\n"[..], "err\n"),
            "{flags:?}"
        );
    }
}

#[test]
fn arguments_arrive_byte_for_byte() {
    let (_confirmer, pod) = free();
    let odd = OsString::from_vec(vec![0xff, 0xfe, b'\n']);
    let original = [
        "printf".into(),
        "<%s>".into(),
        OsString::new(),
        "a b".into(),
        "--".into(),
        "--dir".into(),
        odd,
    ];
    for flags in [&[][..], &["--original-first"]] {
        let ended = pod.hook(flags, &original).ended();
        assert_eq!(ended.stdout, b"<><a b><--><--dir><\xff\xfe\n>", "{flags:?}");
    }
}

#[test]
fn hook_becomes_the_original_and_leaves_it_nothing_of_its_own() {
    let (_confirmer, pod) = free();
    let script = "ls /proc/$$/fd; grep SigIgn /proc/$$/status; echo $$";
    let hook = pod.hook(&[], &["sh", "-c", script]);
    let pid = hook.pid();
    let text = String::from_utf8(hook.ended().stdout).unwrap();
    let direct = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let direct = String::from_utf8(direct.stdout).unwrap();
    let without_pid = |text: &str| text.trim_end().rsplit_once('\n').unwrap().0.to_owned();
    assert_eq!(
        without_pid(&text),
        without_pid(&direct),
        "as if it ran without us"
    );
    assert!(
        text.ends_with(&format!("\n{pid}\n")),
        "the same process: {text}"
    );
    pod.logged("done=true");
}

#[test]
fn original_that_cannot_run_fails_as_in_a_shell() {
    let (_confirmer, pod) = free();
    let plain = pod.scratch().join("plain");
    fs::write(&plain, "").unwrap();
    for flags in [&[][..], &["--original-first"]] {
        let ended = pod.hook(flags, &["/no/such/command"]).ended();
        assert_eq!(ended.code, Some(127));
        assert!(ended.stderr.contains("/no/such/command"), "{ended:?}");
        let ended = pod.hook(flags, &[&plain]).ended();
        assert_eq!(ended.code, Some(126));
        assert!(ended.stderr.contains("ermission denied"), "{ended:?}");
    }
}

#[test]
fn original_runs_after_the_wait_or_before_it() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(2000), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    let [after, before] = ["after", "before"].map(|name| pod.scratch().join(name));
    let mut first = pod.hook(
        &["--original-first"],
        &[OsString::from("touch"), before.clone().into()],
    );
    let mut last = pod.hook(&[], &[OsString::from("touch"), after.clone().into()]);
    eventually("the original that runs first", || {
        before.exists().then_some(())
    });
    assert!(first.is_running() && last.is_running() && !after.exists());
    first.ends_after(ms(2000));
    last.ends_after(ms(2000));
    assert!(after.exists());
}

#[test]
fn hold_is_under_way_while_the_original_runs_first() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(500), go("settled")),
    });
    let pod = Pod::with(&confirmer);
    let mut hook = pod.hook(&["--original-first"], &["sleep", "3"]);
    pod.logged("Released reason=settled");
    assert!(hook.is_running());
    hook.ends_after(ms(3000));
}

#[test]
fn hold_outlives_an_original_that_outlasts_the_fallback_or_the_liveness_cap() {
    std::thread::scope(|scope| {
        for flags in [
            &["--original-first"][..],
            &["--original-first", "--liveness-cap", "1"],
        ] {
            scope.spawn(move || {
                let confirmer = Confirmer::start(|question| match question.number {
                    0 => Reply::Answer(hold(60.0)),
                    _ => Reply::After(ms(5000), go("settled")),
                });
                let pod = Pod::with(&confirmer);
                pod.hook(flags, &["sleep", "3"]).ends_after(ms(5000));
            });
        }
    });
}

/// Lets go 3 s after the first question of the latest hold.
fn lets_go_after_3_s() -> Confirmer {
    Confirmer::start(|question| match question.body["terminating"].as_bool() {
        Some(false) => Reply::Answer(hold(60.0)),
        _ => Reply::After(ms(3000), go("settled")),
    })
}

#[test]
fn waiter_that_came_up_while_the_original_ran_first_takes_over() {
    let confirmer = lets_go_after_3_s();
    let mut pod = Pod::new();
    let hook = pod.hook(&["--original-first"], &["sleep", "3"]);
    std::thread::sleep(ms(300));
    pod.start(&confirmer, &[]);
    hook.ends_after(ms(6000));
}

#[test]
fn waiter_that_came_back_while_the_original_ran_first_takes_over() {
    let confirmer = lets_go_after_3_s();
    let mut pod = Pod::with(&confirmer);
    let hook = pod.hook(&["--original-first"], &["sleep", "3"]);
    pod.logged("Pod is terminating");
    pod.kill_waiter();
    pod.start(&confirmer, &[]);
    hook.ends_after(ms(6000));
}

#[test]
fn original_ended_by_a_signal_fails_as_in_a_shell() {
    let (_confirmer, pod) = free();
    let ended = pod
        .hook(&["--original-first"], &["sh", "-c", "kill -KILL $$"])
        .ended();
    assert_eq!(ended.code, Some(128 + 9));
}
