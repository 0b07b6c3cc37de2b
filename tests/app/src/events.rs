//! Lines of JSON, one per event, for those who follow the container's log.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// Wall-clock milliseconds, since readers compare them with other processes' clocks on the same machine.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Writes `event` to stdout and appends it to each of `paths`. It is written out on return, so that the process may
/// end next. A full disk or a closed log must not change what the service does: errors go to stderr.
pub(crate) fn emit(event: &Value, paths: &[PathBuf]) {
    let line = format!("{event}\n");
    let mut stdout = io::stdout().lock();
    complain(
        stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush()),
        "stdout",
    );
    for path in paths {
        complain(append(path, &line), &path.to_string_lossy());
    }
}

/// Appends one line in one write, so that lines of several writers don't mix.
pub(crate) fn append(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?
        .write_all(line.as_bytes())
}

fn complain(outcome: io::Result<()>, place: &str) {
    if let Err(error) = outcome {
        let _ = writeln!(io::stderr(), "app: failed to write to {place}: {error}");
    }
}
