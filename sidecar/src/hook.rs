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
/// How long a hook whose original ran first takes in what came meanwhile, before its time counts: enough to read what
/// has arrived, or to look for a waiter twice, and nothing beside any bound.
const CATCH_UP: Duration = Duration::from_millis(100);

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
    let mut wait = Wait::new(Limits {
        max_wait,
        min_hold,
        fallback_wait,
        liveness_cap,
    });
    if original_first {
        // HELLO goes out first, so that the hold is under way meanwhile.
        link.connect();
        let code = original::run(&original);
        catch_up(&mut wait, &mut link, &paths, started);
        hold(wait, &mut link, &paths, started);
        link.done();
        return code;
    }
    hold(wait, &mut link, &paths, started);
    link.done();
    original::become_it(&original)
}

/// Takes in what came while nobody looked, and looks for a waiter where there is none: the time that the original took
/// says nothing about whether a waiter is there, so nothing may be due before that is known.
fn catch_up(wait: &mut Wait, link: &mut Link, paths: &Paths, started: Instant) {
    let until = started.elapsed() + CATCH_UP;
    let mut observation = Observation::Tick;
    while !wait.is_over() {
        let Some(left) = until.checked_sub(started.elapsed()) else {
            return;
        };
        observation = seek(link, paths, &observation, left.min(LOOK_EVERY));
        wait.observe(observation.clone(), started.elapsed());
    }
}

/// Carries out what the wait says, until it is over.
fn hold(mut wait: Wait, link: &mut Link, paths: &Paths, started: Instant) {
    let mut observation = Observation::Tick;
    loop {
        let now = started.elapsed();
        observation = match wait.step(observation.clone(), now) {
            Step::Leave(_) => return,
            Step::Listen(until) => link.hear(until.saturating_sub(now)),
            Step::Seek(until) => {
                let within = until.saturating_sub(now).min(LOOK_EVERY);
                seek(link, paths, &observation, within)
            }
        }
    }
}

/// Looks for a waiter; where there is none, or one that says nothing, for the release file. After a `last` look that
/// took no time and settled nothing it pauses instead.
fn seek(link: &mut Link, paths: &Paths, last: &Observation, within: Duration) -> Observation {
    // A waiter that turns us away is as good as none, and a release file that doesn't count stays where it is.
    if matches!(last, Observation::Lost | Observation::GoFile(_)) {
        #[expect(
            clippy::disallowed_methods,
            reason = "the hook is synchronous and has nothing else to wait for"
        )]
        std::thread::sleep(within);
        return Observation::Tick;
    }
    let connected = link.is_connected() || link.connect();
    let heard = if connected {
        link.hear(within)
    } else {
        Observation::Lost
    };
    match heard {
        Observation::Tick | Observation::Lost => {
            go_file::read(&paths.go()).map_or(heard, Observation::GoFile)
        }
        heard => heard,
    }
}
