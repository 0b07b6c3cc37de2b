//! The `waiter` binary: reads the arguments and runs the verb.

use std::io::{self, Write as _};
use std::process::ExitCode;

use sidecar::args::{self, Command, Environment};
use sidecar::{hook, ready, run};

/// What a command exits with where it is called wrongly.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Run(args)) => run::run(args, &Environment::read()),
        Ok(Command::Ready(args)) => ready::run(args),
        Ok(Command::Hook(args)) => hook::run(args),
        Ok(Command::Version) => print(format_args!("waiter {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Command::Help) => print(format_args!("{}", args::USAGE)),
        Err(error) => {
            let source = std::error::Error::source(&error)
                .map(|source| format!(": {source}"))
                .unwrap_or_default();
            let _ = writeln!(io::stderr(), "waiter: {error}{source}");
            ExitCode::from(USAGE_ERROR)
        }
    }
}

/// Unlike `println!` it doesn't panic where stdout is closed.
fn print(text: std::fmt::Arguments<'_>) -> ExitCode {
    match write!(io::stdout(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
