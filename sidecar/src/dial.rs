//! Connecting to the unix socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use socket2::{Domain, SockAddr, Socket, Type};

/// Connects at once or not at all. A plain connect waits without limit while the listener's backlog is full, which a
/// frozen waiter and a container that opens connections are enough for.
///
/// # Errors
/// Nobody listens, or nobody has accepted for long (`WouldBlock`): either way there is no waiter now.
pub(crate) fn dial(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}
