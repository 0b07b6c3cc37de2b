//! The hook's end of the unix socket.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::contract::{HookMessage, PROTOCOL, WaiterMessage};
use crate::dial::dial;
use crate::lines::{self, Lines};
use crate::wait::Observation;

/// How long a message of ours may take; it fits into the socket's buffer, so this is for a kernel in trouble only.
const WRITE_WITHIN: Duration = Duration::from_secs(1);
/// A timeout of zero would mean none.
const SHORTEST_READ: Duration = Duration::from_millis(1);

/// The connection to the waiter, while there is one.
#[derive(Debug)]
pub(super) struct Link {
    socket: PathBuf,
    container: String,
    stream: Option<UnixStream>,
    lines: Lines,
}

impl Link {
    pub(super) fn new(socket: PathBuf, container: String) -> Self {
        Self {
            socket,
            container,
            stream: None,
            lines: Lines::default(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Connects and says HELLO, without waiting for anybody; tells whether that worked.
    pub(super) fn connect(&mut self) -> bool {
        self.lines = Lines::default();
        let hello = HookMessage::Hello {
            protocol: PROTOCOL,
            container: self.container.clone(),
        };
        self.stream = dial(&self.socket).ok();
        self.send(&hello)
    }

    /// Says that the hook is about to go. Nothing hangs on it.
    pub(super) fn done(&mut self) {
        self.send(&HookMessage::Done);
    }

    fn send(&mut self, message: &HookMessage) -> bool {
        let sent = self.stream.as_mut().is_some_and(|stream| {
            let timed = stream.set_write_timeout(Some(WRITE_WITHIN));
            timed
                .and_then(|()| stream.write_all(&lines::encode(message)))
                .is_ok()
        });
        if !sent {
            self.stream = None;
        }
        sent
    }

    /// What the waiter says within this time; [`Observation::Tick`] where that is nothing of importance.
    pub(super) fn hear(&mut self, within: Duration) -> Observation {
        loop {
            match self.lines.take() {
                Ok(Some(WaiterMessage::Welcome { epoch })) => {
                    return Observation::Welcomed { epoch };
                }
                Ok(Some(WaiterMessage::Terminating)) => return Observation::Terminating,
                Ok(Some(WaiterMessage::Go { reason })) => return Observation::Go(reason),
                Ok(Some(WaiterMessage::Unknown)) => return Observation::Tick,
                Ok(None) => {}
                Err(_) => return self.lost(),
            }
            let Some(stream) = &mut self.stream else {
                return Observation::Lost;
            };
            let mut bytes = [0; 512];
            let timed = stream.set_read_timeout(Some(within.max(SHORTEST_READ)));
            match timed.and_then(|()| stream.read(&mut bytes)) {
                Ok(0) => return self.lost(),
                Ok(count) => self.lines.push(&bytes[..count]),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    return Observation::Tick;
                }
                Err(_) => return self.lost(),
            }
        }
    }

    fn lost(&mut self) -> Observation {
        self.stream = None;
        Observation::Lost
    }
}
