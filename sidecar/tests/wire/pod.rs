//! A gated pod without a kubelet: a shared directory, one waiter, and hooks.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sidecar::contract::{ENV_CA, ENV_CONFIRMER, GoFile};
use sidecar::go_file;
use tempfile::TempDir;

use crate::confirmer::{Confirmer, SERVER_NAME};

/// The hold when nothing can be confirmed, in every test's hooks and waiters.
pub(crate) const FALLBACK: Duration = Duration::from_secs(2);
/// How much later than planned something may happen on a busy machine. Less than [`FALLBACK`], so that a hook which is
/// let go at once is told from one that fell back.
pub(crate) const SLACK: Duration = Duration::from_millis(1900);
/// How long a test waits for what must happen at some time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// What the token file holds.
pub(crate) const TOKEN: &str = "header.s3cret-payload.signature";

const WAITER: &str = env!("CARGO_BIN_EXE_waiter");

/// The pod; its processes end with it.
pub(crate) struct Pod {
    directory: TempDir,
    waiter: Option<Child>,
}

/// A hook that runs.
pub(crate) struct Hook {
    child: Child,
    started: Instant,
}

/// A hook that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) after: Duration,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Looks until `found` finds something.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(thing) = found() {
            return thing;
        }
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal by the system's own tool.
pub(crate) fn signal(pid: u32, name: &str) {
    assert!(
        Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

impl Pod {
    /// A pod in which nothing runs yet.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("volume")).unwrap();
        let pod = Self {
            directory,
            waiter: None,
        };
        fs::write(pod.token_file(), format!("{TOKEN}\n")).unwrap();
        pod
    }

    /// A pod whose waiter listens, and asks this confirmer.
    pub(crate) fn with(confirmer: &Confirmer) -> Self {
        let mut pod = Self::new();
        pod.start(confirmer, &[]);
        pod
    }

    /// Starts a waiter that asks this confirmer, and waits until it listens.
    pub(crate) fn start(&mut self, confirmer: &Confirmer, args: &[&str]) {
        self.start_at(
            Some(&confirmer.address.to_string()),
            Some(&confirmer.ca),
            args,
        );
    }

    /// Starts a waiter with this environment, and waits until it listens.
    pub(crate) fn start_at(&mut self, addresses: Option<&str>, ca: Option<&str>, args: &[&str]) {
        let mut command = self.waiter_command();
        command.args(args);
        for (key, value) in [(ENV_CONFIRMER, addresses), (ENV_CA, ca)] {
            if let Some(value) = value {
                command.env(key, value);
            }
        }
        self.spawn(command);
    }

    /// `waiter run` with what every test has in common.
    pub(crate) fn waiter_command(&self) -> Command {
        let mut command = Command::new(WAITER);
        command.args([
            "run",
            "--original-grace",
            "5",
            "--max-wait",
            "8",
            "--fallback-wait",
            "2",
        ]);
        command
            .args(["--server-name", SERVER_NAME, "--dir"])
            .arg(self.volume());
        command.arg("--token-file").arg(self.token_file());
        command.env_remove(ENV_CONFIRMER).env_remove(ENV_CA);
        command
    }

    /// Runs this as the pod's waiter, and waits until it listens.
    pub(crate) fn spawn(&mut self, command: Command) {
        self.launch(command);
        let socket = self.volume().join("sock");
        eventually("the waiter to listen", || UnixStream::connect(&socket).ok());
    }

    /// Runs this as the pod's waiter.
    pub(crate) fn launch(&mut self, mut command: Command) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .unwrap();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.waiter = Some(command.spawn().unwrap());
    }

    /// Starts a hook with these flags and this original.
    pub(crate) fn hook<A: AsRef<OsStr>>(&self, flags: &[&str], original: &[A]) -> Hook {
        let mut command = Command::new(WAITER);
        command.args([
            "hook",
            "--container",
            "app",
            "--max-wait",
            "8",
            "--fallback-wait",
            "2",
            "--dir",
        ]);
        command
            .arg(self.volume())
            .args(flags)
            .arg("--")
            .args(original);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Hook {
            started: Instant::now(),
            child: command.spawn().unwrap(),
        }
    }

    /// Starts a hook of a container without an own preStop.
    pub(crate) fn plain_hook(&self) -> Hook {
        self.hook::<&str>(&[], &[])
    }

    /// Ends the waiter as the kernel does.
    pub(crate) fn kill_waiter(&mut self) {
        let mut waiter = self.waiter.take().unwrap();
        waiter.kill().unwrap();
        waiter.wait().unwrap();
    }

    /// The waiter's process.
    pub(crate) fn waiter(&mut self) -> &mut Child {
        self.waiter.as_mut().unwrap()
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.directory.path().join("volume")
    }

    pub(crate) fn token_file(&self) -> PathBuf {
        self.directory.path().join("token")
    }

    /// The release file, if there is one.
    pub(crate) fn go_file(&self) -> Option<GoFile> {
        go_file::read(&self.volume().join("go"))
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// All that the pod's waiters logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Waits until the waiter logged this.
    pub(crate) fn logged(&self, text: &str) {
        eventually(text, || self.log().contains(text).then_some(()));
    }

    /// The pod's own place for other files.
    pub(crate) fn scratch(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(mut waiter) = self.waiter.take() {
            let _ = waiter.kill();
            let _ = waiter.wait();
        }
        if std::thread::panicking() {
            println!("log of the waiter:\n{}", self.log());
        }
    }
}

impl Hook {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Checks that it is still held that long after its start.
    pub(crate) fn is_held_for(&mut self, duration: Duration) {
        std::thread::sleep(duration.saturating_sub(self.started.elapsed()));
        assert!(
            self.is_running(),
            "the hook ended early, within {:?}",
            self.started.elapsed()
        );
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Ended {
        let status = eventually("the hook to end", || self.child.try_wait().unwrap());
        let after = self.started.elapsed();
        let (mut stdout, mut stderr) = (Vec::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut stdout)
            .unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        Ended {
            code: status.code(),
            after,
            stdout,
            stderr,
        }
    }

    /// Waits for its end, which must come at about that time after its start, with success and without a word.
    pub(crate) fn ends_after(self, expected: Duration) {
        let ended = self.ended();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(
            ended.after >= expected,
            "too early: {:?} instead of {expected:?}",
            ended.after
        );
        assert!(
            ended.after < expected + SLACK,
            "too late: {:?} instead of {expected:?}",
            ended.after
        );
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
