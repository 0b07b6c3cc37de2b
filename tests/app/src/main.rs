//! `app`: what the tests and the demo run in pods, FROM scratch and static.
//!
//! `app serve` is the service, `app record` a pod's own preStop hook, `app pause` a pod's sandbox. All of them may be
//! PID 1, which ignores every signal that it has no handler for.

mod args;
mod events;
mod pause;
mod record;
mod serve;
mod state;
mod stream;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::args::Command;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => return fail(2, &format!("{error}\n{}", args::USAGE)),
    };
    let outcome = match command {
        Command::Serve(options) => {
            runtime().and_then(|runtime| runtime.block_on(serve::run(options)))
        }
        Command::Pause => runtime().and_then(|runtime| runtime.block_on(pause::run())),
        Command::Record(options) => return record::run(&options),
    };
    match outcome {
        // Connections that are still open are dropped with the process, as the demo's service must do.
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error.to_string()),
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Says why on stderr and gives the exit code; a closed stderr must not keep the process alive.
fn fail(code: u8, message: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "app: {message}");
    ExitCode::from(code)
}
