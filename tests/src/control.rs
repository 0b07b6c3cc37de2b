//! The wire between a test and the process that supervises its cluster: one JSON object a line,
//! over a unix socket, one request and one answer for each connection.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::process::Name;

/// Longest wait for an answer; every request is done in moments.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the supervising process can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// End it with SIGKILL and leave it ended.
    Kill,
    /// Freeze it with SIGSTOP: its connections stay open and nothing answers.
    Pause,
    /// Thaw it with SIGCONT.
    Resume,
    /// Start it again after it was ended.
    Start,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// What to do.
    pub action: Action,
    /// What to do it to.
    pub component: Name,
}

/// The answer to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Why it failed.
    pub error: Option<String>,
    /// The component's process id afterwards, if it runs.
    pub pid: Option<u32>,
}

/// Sends a request and waits for the answer.
///
/// # Errors
/// When nobody supervises the cluster, or the request failed there.
pub fn ask(socket: &Path, request: Request) -> Result<Answer> {
    let stream = UnixStream::connect(socket)
        .with_context(|| format!("failed to reach {}", socket.display()))?;
    stream
        .set_read_timeout(Some(ANSWER_WITHIN))
        .context("failed to limit the wait for an answer")?;
    let mut line = serde_json::to_string(&request)?;
    line.push('\n');
    (&stream)
        .write_all(line.as_bytes())
        .context("failed to send a request to the cluster")?;
    let mut line = String::new();
    BufReader::new(&stream)
        .read_line(&mut line)
        .context("failed to read the cluster's answer")?;
    let answer: Answer =
        serde_json::from_str(&line).context("failed to parse the cluster's answer")?;
    match answer.error {
        Some(error) => bail!(
            "failed to {:?} {}: {error}",
            request.action,
            request.component.as_str()
        ),
        None => Ok(answer),
    }
}
