//! What happens, told as it happens.

use std::io::{self, Write};
use std::time::Instant;

/// Writes lines with the time since the start.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    start: Instant,
}

impl Story {
    /// A story that begins now.
    pub fn begin() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// Tells one line about `who`. A closed stdout must not end a run.
    pub fn tell(&self, who: &str, line: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        let _ = writeln!(io::stdout().lock(), "{seconds:7.1} s  {who:<12}  {line}");
    }
}
