//! `waiter hook`: a main's preStop. Blocks until the waiter lets it go, then becomes the original.
//!
//! It runs inside the app's own container: with its user, its seccomp profile and what its memory limit leaves. So it
//! is synchronous, needs no file but the socket and the release file, and makes few system calls. Whatever fails, the
//! wait itself always succeeds: only the original's exit code passes through.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::link::Link;
use crate::args::HookArgs;
use crate::go_file;
use crate::paths::Paths;
use crate::wait::{Limits, Observation, Step, Wait};

mod link;
mod original;

/// How often a hook without a waiter looks at the release file and for a waiter.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Waits and runs the original, or the other way round. Returns only where there is no process left to become.
pub fn run(args: HookArgs) -> ExitCode {
    let started = Instant::now();
    let HookArgs {
        dir,
        container,
        max_wait,
        min_hold,
        fallback_wait,
        liveness_cap,
        original_first,
        original,
    } = args;
    let paths = Paths::new(dir);
    let mut link = Link::new(paths.socket(), container);
    let wait = Wait::new(Limits {
        max_wait,
        min_hold,
        fallback_wait,
        liveness_cap,
    });
    if original_first {
        // HELLO goes out first, so that the hold is under way meanwhile.
        link.connect();
        let code = original::run(&original);
        hold(wait, &mut link, &paths, started);
        link.done();
        return code;
    }
    hold(wait, &mut link, &paths, started);
    link.done();
    original::become_it(&original)
}

/// Carries out what the wait says, until it is over.
fn hold(mut wait: Wait, link: &mut Link, paths: &Paths, started: Instant) {
    let mut observation = Observation::Tick;
    loop {
        let now = started.elapsed();
        observation = match wait.step(observation, now) {
            Step::Leave(_) => return,
            Step::Listen(until) => link.hear(until.saturating_sub(now)),
            Step::Seek(until) => seek(link, paths, until.saturating_sub(now).min(LOOK_EVERY)),
        }
    }
}

/// Looks for a waiter; where there is none, or one that says nothing, for the release file.
fn seek(link: &mut Link, paths: &Paths, within: Duration) -> Observation {
    let connected = link.is_connected() || link.connect();
    let heard = if connected {
        link.hear(within)
    } else {
        Observation::Lost
    };
    if heard != Observation::Tick && heard != Observation::Lost {
        return heard;
    }
    if let Some(go) = go_file::read(&paths.go()) {
        return Observation::GoFile(go);
    }
    if heard == Observation::Lost {
        // A waiter that turns us away is as good as none: come back later.
        #[expect(
            clippy::disallowed_methods,
            reason = "the hook is synchronous and has nothing else to wait for"
        )]
        std::thread::sleep(within);
    }
    heard
}
