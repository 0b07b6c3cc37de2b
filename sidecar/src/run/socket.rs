//! The sidecar's end of the unix socket: connections in, events out.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};

use crate::contract::{HookMessage, WaiterMessage};
use crate::lines::{self, Lines};
use crate::step::HookId;
use crate::{go_file, log};

/// Most connections at a time: a pod has a few containers, and the kubelet may run each hook twice.
const CONNECTIONS: usize = 64;
/// How long a connection may go without its HELLO, which takes a hook less than a millisecond.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long to keep off after a failed accept: such as no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait before the socket is bound again.
const BIND_PAUSE: Duration = Duration::from_secs(5);

/// What happens on the connections.
#[derive(Debug)]
pub(super) enum Event {
    /// A hook said HELLO.
    Hello {
        /// Its connection.
        hook: HookId,
        /// What it calls itself: only for people, it comes from inside the pod.
        container: String,
        /// How to speak to it; its connection ends when this is dropped.
        messages: mpsc::UnboundedSender<WaiterMessage>,
    },
    /// A hook that had said HELLO is gone.
    Left {
        /// Its connection.
        hook: HookId,
        /// Whether it said DONE.
        done: bool,
    },
}

/// Binds the socket for everybody in the pod, whatever an earlier waiter left there. Without a socket there is no gate,
/// but ending would keep the pod from starting: so it is tried for ever.
pub(super) async fn bind(path: &Path) -> UnixListener {
    loop {
        match try_bind(path) {
            Ok(listener) => return listener,
            Err(error) => {
                log::line(format_args!(
                    "Failed to bind the socket, hooks will hold the fallback path={} error=\"{error}\"",
                    path.display()
                ));
            }
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
}

fn try_bind(path: &Path) -> io::Result<UnixListener> {
    go_file::remove(path)?;
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts connections for ever.
pub(super) async fn accept(listener: UnixListener, events: mpsc::Sender<Event>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut hook: HookId = 0;
    let mut full = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                log::line(format_args!(
                    "Failed to accept a connection error=\"{error}\""
                ));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // The hook sees that it is turned away, and tries again until its fallback.
            if !full {
                log::line(format_args!(
                    "Turned connections away, too many are open most={CONNECTIONS}"
                ));
            }
            full = true;
            continue;
        };
        full = false;
        hook += 1;
        let events = events.clone();
        tokio::spawn(async move {
            serve(hook, stream, events).await;
            drop(place);
        });
    }
}

/// One connection: until HELLO it is nobody, then it is a hook, and its end is told.
async fn serve(hook: HookId, mut stream: UnixStream, events: mpsc::Sender<Event>) {
    let mut lines = Lines::default();
    let greeting = tokio::time::timeout(
        HELLO_WITHIN,
        hear(&mut stream, &mut lines, |message| match message {
            HookMessage::Hello { container, .. } => Some(container),
            HookMessage::Done | HookMessage::Unknown => None,
        }),
    );
    // `waiter ready` connects and says nothing; that is no event.
    let Ok(Some(container)) = greeting.await else {
        return;
    };
    let (messages, mut outgoing) = mpsc::unbounded_channel();
    if events
        .send(Event::Hello {
            hook,
            container,
            messages,
        })
        .await
        .is_err()
    {
        return;
    }
    let (mut reader, mut writer) = stream.split();
    let speak = async {
        while let Some(message) = outgoing.recv().await {
            if writer.write_all(&lines::encode(&message)).await.is_err() {
                break;
            }
        }
        false
    };
    let listen = async {
        let is_done = |message| matches!(message, HookMessage::Done).then_some(());
        hear(&mut reader, &mut lines, is_done).await.is_some()
    };
    let done = tokio::select! {
        done = speak => done,
        done = listen => done,
    };
    // The hub ends with the process only, so there is nobody left to tell then.
    let _ = events.send(Event::Left { hook, done }).await;
}

/// Reads messages until `wanted` picks one; `None` at the end of the connection, or when it isn't one of ours.
async fn hear<T>(
    reader: &mut (impl tokio::io::AsyncRead + Unpin),
    lines: &mut Lines,
    wanted: impl Fn(HookMessage) -> Option<T>,
) -> Option<T> {
    let mut bytes = [0; 512];
    loop {
        match lines.take() {
            Ok(Some(message)) => {
                if let Some(found) = wanted(message) {
                    return Some(found);
                }
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                log::line(format_args!(
                    "Closed a connection that isn't a hook's error={:?}",
                    log::chain(&error)
                ));
                return None;
            }
        }
        match reader.read(&mut bytes).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => lines.push(&bytes[..count]),
        }
    }
}
