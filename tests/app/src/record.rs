//! A pod's own exec preStop: says when it ran and with which words, then ends with the wanted code.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::json;

use crate::args::Record;
use crate::events;

/// Exit code when the line could not be written; differs from what tests ask for.
const NOT_WRITTEN: u8 = 125;

/// Appends the line and gives the exit code.
pub(crate) fn run(options: &Record) -> ExitCode {
    let argv: Vec<_> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let event = json!({"event": "record", "unix_ms": events::unix_ms(), "text": options.text.join(" "), "argv": argv});
    if let Err(error) = events::append(&options.path, &format!("{event}\n")) {
        let _ = writeln!(
            io::stderr(),
            "app: failed to append to {}: {error}",
            options.path.display()
        );
        return ExitCode::from(NOT_WRITTEN);
    }
    ExitCode::from(options.exit)
}
