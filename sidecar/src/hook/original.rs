//! The container's own preStop: becomes it, or runs it first.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, ExitStatus};

/// What a shell exits with where there is no such command.
const NOT_FOUND: u8 = 127;
/// What a shell exits with where the command can't be executed.
const NOT_EXECUTABLE: u8 = 126;
/// What a shell adds to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

/// Replaces this process with the original: a child that outlives us or holds our output would hang the runtime.
/// Returns where there is none, or where it can't be executed.
pub(super) fn become_it(original: &[OsString]) -> ExitCode {
    command(original).map_or(ExitCode::SUCCESS, |mut command| {
        failed(original, &command.exec())
    })
}

/// Runs the original to its end; what it exits with.
pub(super) fn run(original: &[OsString]) -> ExitCode {
    let Some(mut command) = command(original) else {
        return ExitCode::SUCCESS;
    };
    match command.status() {
        Ok(status) => ExitCode::from(code(status)),
        Err(error) => failed(original, &error),
    }
}

fn command(original: &[OsString]) -> Option<Command> {
    let (program, args) = original.split_first()?;
    let mut command = Command::new(program);
    command.args(args);
    Some(command)
}

fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// Says on stderr, which the kubelet's event shows, what is wrong; as a shell would.
fn failed(original: &[OsString], error: &io::Error) -> ExitCode {
    let program = original.first();
    let _ = writeln!(
        io::stderr(),
        "waiter: failed to execute the preStop {program:?}: {error}"
    );
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    })
}
