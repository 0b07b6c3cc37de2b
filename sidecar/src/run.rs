//! `waiter run`: the sidecar's own process.

use std::hash::{BuildHasher as _, RandomState};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::confirmer::Client;
use self::hub::Hub;
use crate::args::{Environment, RunArgs};
use crate::contract::HoldParams;
use crate::paths::Paths;
use crate::step::Limits;
use crate::{go_file, log};

mod backoff;
mod confirmer;
mod hello;
mod hub;
mod install;
mod socket;
mod traffic;

/// Runs until SIGTERM, which the kubelet sends after the mains' end (or when the grace is over): so there is nothing
/// left to wait for then.
pub fn run(args: RunArgs, environment: &Environment) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            log::line(format_args!("Failed to start error=\"{error}\""));
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        // First of all: as PID 1 a process without a handler ignores the signal.
        let stop = stopped();
        tokio::select! {
            biased;
            () = stop => {}
            () = serve(args, environment) => {}
        }
    });
    log::line(format_args!("Stopped"));
    // Without waiting for a look-up of a name that may hang.
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

/// Installs the handlers now; the future ends with the first signal.
fn stopped() -> impl Future<Output = ()> {
    let handlers = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    async move {
        let [Ok(mut terminate), Ok(mut interrupt)] = handlers else {
            log::line(format_args!("Failed to install the signal handlers"));
            return std::future::pending().await;
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

async fn serve(args: RunArgs, environment: &Environment) {
    let paths = Paths::new(&args.dir);
    // Before anything can connect: no hook may take an earlier waiter's release for this one's.
    if let Err(error) = go_file::remove(&paths.go()) {
        log::line(format_args!(
            "Failed to remove the release file error=\"{error}\""
        ));
    }
    let epoch = draw_epoch();
    log::line(format_args!(
        "Started version={:?} epoch={epoch:?} max_wait={:?} min_hold={:?} fallback_wait={:?}",
        env!("CARGO_PKG_VERSION"),
        args.max_wait,
        args.min_hold,
        args.fallback_wait
    ));
    install::install(&paths);
    let listener = socket::bind(&paths.socket()).await;
    let client = Client::new(&args, environment);
    tokio::spawn(hello::say(client.another()));
    // Bounded: hooks beyond it wait in their connections.
    let (events, incoming) = mpsc::channel(64);
    tokio::spawn(socket::accept(listener, events));
    let limits = Limits {
        max_wait: args.max_wait,
        min_hold: args.min_hold,
        fallback_wait: args.fallback_wait,
    };
    Hub::new(limits, params(&args), epoch, paths, client, Instant::now())
        .run(incoming)
        .await;
}

fn params(args: &RunArgs) -> HoldParams {
    HoldParams {
        original_grace_seconds: args.original_grace.as_secs_f64(),
        max_wait_seconds: args.max_wait.as_secs_f64(),
        min_hold_seconds: args.min_hold.as_secs_f64(),
        fallback_wait_seconds: args.fallback_wait.as_secs_f64(),
        settle_seconds: args.settle.map(|settle| settle.as_secs_f64()),
        quiet_seconds: args.quiet.map(|quiet| quiet.as_secs_f64()),
        host_network: args.host_network,
        probes_per_minute: args.probes.clone(),
    }
}

/// A name for this process that no earlier waiter of the pod had: the standard library's hashers start from the
/// system's random numbers.
fn draw_epoch() -> String {
    format!(
        "{:016x}",
        RandomState::new().hash_one((std::process::id(), SystemTime::now()))
    )
}
