//! Start, readiness, end, and being called wrongly.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use crate::confirmer::{Confirmer, Reply, go, hold};
use crate::pod::{Pod, eventually, signal};

const WAITER: &str = env!("CARGO_BIN_EXE_waiter");

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn exit_code(child: &mut Child) -> Option<i32> {
    eventually("the process to end", || child.try_wait().unwrap()).code()
}

fn call(binary: &Path, args: &[&str]) -> Output {
    Command::new(binary).args(args).output().unwrap()
}

#[test]
fn files_are_open_to_every_user_whatever_the_umask() {
    let mut pod = Pod::new();
    let waiter = pod.waiter_command();
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 077; exec \"$@\"", "sh"])
        .arg(waiter.get_program())
        .args(waiter.get_args());
    pod.spawn(command);
    let volume = pod.volume();
    assert_eq!(mode(&volume.join("bin")), 0o755);
    assert_eq!(mode(&volume.join("bin/waiter")), 0o755);
    assert_eq!(mode(&volume.join("sock")), 0o666);
    pod.logged("Installed the binary");
    let version = call(&volume.join("bin/waiter"), &["--version"]);
    assert_eq!(
        version.stdout,
        format!("waiter {}\n", env!("CARGO_PKG_VERSION")).as_bytes()
    );
}

#[test]
fn files_of_an_earlier_waiter_do_not_matter() {
    let confirmer = Confirmer::start(|_| Reply::Answer(go("no-attachment")));
    let mut pod = Pod::new();
    let volume = pod.volume();
    fs::create_dir(volume.join("bin")).unwrap();
    for leftover in ["go", "go.new", "sock", "bin/waiter", "bin/waiter.new"] {
        fs::write(volume.join(leftover), "leftover").unwrap();
    }
    fs::remove_file(volume.join("sock")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(volume.join("sock")).unwrap());
    pod.start(&confirmer, &[]);
    pod.logged("Installed the binary");
    pod.plain_hook().ends_after(Duration::ZERO);
}

#[test]
fn volume_that_cannot_be_written_does_not_end_the_waiter() {
    let mut pod = Pod::new();
    fs::remove_dir(pod.volume()).unwrap();
    fs::write(pod.volume(), "").unwrap();
    pod.launch(pod.waiter_command());
    pod.logged("Failed to bind the socket");
    assert!(pod.waiter().try_wait().unwrap().is_none());
    signal(pod.waiter().id(), "TERM");
    assert_eq!(exit_code(pod.waiter()), Some(0));
}

#[test]
fn sigterm_ends_the_waiter_at_once_even_while_hooks_wait() {
    let confirmer = Confirmer::start(|question| match question.number {
        0 => Reply::Answer(hold(60.0)),
        _ => Reply::Silence,
    });
    let mut pod = Pod::with(&confirmer);
    let mut hook = pod.plain_hook();
    pod.logged("Pod is terminating");
    let started = Instant::now();
    signal(pod.waiter().id(), "TERM");
    assert_eq!(exit_code(pod.waiter()), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    assert!(hook.is_running());
}

#[test]
fn ready_waits_for_the_waiter() {
    let mut pod = Pod::new();
    let volume = pod.volume();
    let mut ready = Command::new(WAITER)
        .args(["ready", "--dir"])
        .arg(&volume)
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(ready.try_wait().unwrap().is_none());
    pod.start_at(None, None, &[]);
    let started = Instant::now();
    assert_eq!(exit_code(&mut ready), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(!pod.log().contains("Hook"), "it is no hook");
}

#[test]
fn ready_succeeds_without_a_waiter_too_after_5_seconds() {
    let pod = Pod::new();
    let started = Instant::now();
    let ready = call(
        Path::new(WAITER),
        &["ready", "--dir", pod.volume().to_str().unwrap()],
    );
    assert_eq!(ready.status.code(), Some(0));
    let seconds = started.elapsed().as_secs_f64();
    assert!((5.0..6.5).contains(&seconds), "{seconds}");
}

#[test]
fn wrong_arguments_exit_2_and_say_what_is_allowed() {
    for (args, text) in [
        (
            &[
                "hook",
                "--container",
                "a",
                "--max-wait",
                "banana",
                "--fallback-wait",
                "1",
            ][..],
            "decimal number",
        ),
        (
            &[
                "run",
                "--max-wait",
                "1",
                "--original-grace",
                "1",
                "--fallback-wait",
                "1",
            ],
            "--server-name is missing",
        ),
        (&["sing"], "run, ready and hook"),
        (&["hook", "--max-wait"], "max-wait"),
    ] {
        let output = call(Path::new(WAITER), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(
            stderr.contains(text) && stderr.lines().count() == 1,
            "{args:?}: {stderr}"
        );
    }
}
