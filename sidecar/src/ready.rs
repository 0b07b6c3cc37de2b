//! `waiter ready`: the sidecar's postStart. Keeps the mains from starting before their hooks can run.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::args::ReadyArgs;
use crate::dial::dial;
use crate::paths::Paths;

/// Longest wait: while a postStart runs, the kubelet does nothing else for the pod.
const WITHIN: Duration = Duration::from_secs(5);
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Waits until the waiter listens and its binary is installed. Always succeeds: a failing postStart would kill the
/// waiter, and the pod would never start.
pub fn run(args: ReadyArgs) -> ExitCode {
    let paths = Paths::new(args.dir);
    let started = Instant::now();
    while started.elapsed() < WITHIN && !is_ready(&paths) {
        #[expect(
            clippy::disallowed_methods,
            reason = "it is synchronous and has nothing else to wait for"
        )]
        std::thread::sleep(LOOK_EVERY);
    }
    ExitCode::SUCCESS
}

fn is_ready(paths: &Paths) -> bool {
    paths.binary().exists() && dial(&paths.socket()).is_ok()
}
