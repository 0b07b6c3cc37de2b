//! A pod's sandbox: holds the namespaces open, reaps what is left to PID 1, and goes when asked.

use std::io;

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

/// Runs until SIGTERM or SIGINT.
pub(crate) async fn run() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child = signal(SignalKind::child())?;
    loop {
        reap();
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = child.recv() => {}
        }
    }
}

/// One SIGCHLD can stand for several ended children.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
