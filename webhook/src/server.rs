//! Listeners: bound, then spawned, then joined. HTTP/1.1 over TLS (or in plaintext for health and metrics).
//!
//! What a client may cost is limited here: time for the handshake and for each request's head, the number of
//! connections and the memory of each. What a request may cost (its body's size, its time) is up to the router.

mod connection;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::server::connection::Connection;

/// Connections that the kernel holds ready; all waiters reconnect at once when a replica is lost. The kernel cuts it
/// to `net.core.somaxconn` (4096).
const BACKLOG: u32 = 4096;

/// Pause after a failed accept, as Go's net/http does at the longest: without file descriptors left it fails at once
/// again and again.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Shortest time between two warnings that a listener is full.
const FULL_WARNING_PAUSE: Duration = Duration::from_mins(1);

/// What clients may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest TLS handshake.
    pub handshake: Duration,
    /// Longest wait for a request's head; an idle connection is closed after it too.
    pub head: Duration,
    /// Most connections at a time; further ones wait in the kernel.
    pub connections: usize,
    /// Most bytes of a request that are buffered before the router takes them, at least 8192.
    pub buffer: usize,
    /// Longest time for requests in flight to end at shutdown.
    pub drain: Duration,
}

impl Limits {
    /// For the API servers' reviews: few connections, kept for long. Three servers with their default of 200 mutating
    /// requests in flight each, shared by two replicas, make 300. Go's client drops an idle one after 90 s; it
    /// must be the first to do so, or it would send a review into a connection that is being closed.
    pub const WEBHOOK: Self = Self {
        handshake: Duration::from_secs(10),
        head: Duration::from_mins(2),
        connections: 300,
        buffer: 64 * 1024,
        drain: Duration::from_secs(10),
    };
    /// For the waiters: up to 10,000 long-polls, small requests, a connection each.
    pub const CONFIRMER: Self = Self {
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(30),
        connections: 20_000,
        buffer: 8 * 1024,
        drain: Duration::from_secs(10),
    };
    /// For the kubelet and Prometheus. A probe is a connection of its own, and must find room beside idle ones that
    /// any pod can open.
    pub const ADMIN: Self = Self {
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(5),
        connections: 2_000,
        buffer: 8 * 1024,
        drain: Duration::from_secs(1),
    };
}

/// Why a listener can't be bound.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for {name}")]
pub struct Error {
    name: &'static str,
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// A TLS configuration (1.2 and 1.3, HTTP/1.1) that takes its certificate from `resolver` at each handshake.
///
/// Sessions are not resumed: a client would go on with a certificate that we have replaced, and 10,000 waiters'
/// sessions would have to be kept.
pub fn tls_config(resolver: Arc<dyn ResolvesServerCert>) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("ring must offer TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// A listener that has its port, but nobody who answers yet: the kernel queues the connections.
#[derive(Debug)]
pub struct Bound {
    name: &'static str,
    listener: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

/// A listener that is being served.
#[derive(Debug)]
#[must_use = "it must be joined, or requests in flight are cut off when the process ends"]
pub struct Spawned {
    name: &'static str,
    task: JoinHandle<()>,
}

impl Bound {
    /// Binds `address`; `[::]` takes IPv4 too. `name` is for the logs.
    ///
    /// # Errors
    /// Where the port is taken or the address isn't ours.
    pub fn bind(name: &'static str, address: SocketAddr, limits: Limits) -> Result<Self, Error> {
        let listen = |address: SocketAddr| {
            let socket = if address.is_ipv4() {
                TcpSocket::new_v4()?
            } else {
                TcpSocket::new_v6()?
            };
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            let listener = socket.listen(BACKLOG)?;
            Ok((listener.local_addr()?, listener))
        };
        // A node without IPv6 has no [::], and means the same by 0.0.0.0.
        let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let is_any_v6 = address.ip() == Ipv6Addr::UNSPECIFIED;
        let bound = match listen(address) {
            Err(error) if is_any_v6 && is_without_ipv6(&error) => listen(any_v4),
            result => result,
        };
        match bound {
            Ok((address, listener)) => Ok(Self {
                name,
                listener,
                address,
                limits,
            }),
            Err(source) => Err(Error {
                name,
                address,
                source,
            }),
        }
    }

    /// The address, with the port that was chosen where port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `router` over TLS until `shutdown`, then lets requests in flight end.
    pub fn spawn_tls(
        self,
        tls: Arc<ServerConfig>,
        router: Router,
        shutdown: CancellationToken,
    ) -> Spawned {
        self.spawn(Some(TlsAcceptor::from(tls)), router, shutdown)
    }

    /// Serves `router` in plaintext until `shutdown`, then lets requests in flight end.
    pub fn spawn_plain(self, router: Router, shutdown: CancellationToken) -> Spawned {
        self.spawn(None, router, shutdown)
    }

    fn spawn(
        self,
        tls: Option<TlsAcceptor>,
        router: Router,
        shutdown: CancellationToken,
    ) -> Spawned {
        let name = self.name;
        let connection = Connection {
            tls,
            router,
            limits: self.limits,
            shutdown,
        };
        let task = tokio::spawn(
            self.serve(connection)
                .instrument(info_span!("server", name)),
        );
        Spawned { name, task }
    }

    async fn serve(self, connection: Connection) {
        info!(address = %self.address, "Listening");
        let connection = Arc::new(connection);
        let mut slots = Slots::new(self.limits.connections);
        let mut connections = JoinSet::new();
        loop {
            let accept = async {
                let slot = slots.next().await;
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                () = connection.shutdown.cancelled() => break,
                accepted = accept => accepted,
            };
            // Those that ended: a JoinSet keeps them until asked.
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, client)) => {
                    let serve = Arc::clone(&connection).serve(stream, slot);
                    connections.spawn(serve.instrument(info_span!("conn", %client)));
                }
                Err(error) if is_clients_own(&error) => {}
                Err(error) => {
                    warn!(%error, "Failed to accept a connection, pausing");
                    tokio::select! {
                        () = connection.shutdown.cancelled() => break,
                        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                    }
                }
            }
        }
        drop(self.listener);
        drain(connections, self.limits.drain).await;
    }
}

impl Spawned {
    /// Waits until the listener was shut down and its connections have ended.
    pub async fn join(self) {
        if let Err(error) = self.task.await {
            warn!(%error, name = self.name, "Failed to join a server");
        }
    }
}

/// Whether the machine has no IPv6, neither in its kernel nor on any interface.
fn is_without_ipv6(error: &io::Error) -> bool {
    let errno = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        errno,
        Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL)
    )
}

/// Waits for the connections to end by themselves, then cuts off what is left.
async fn drain(mut connections: JoinSet<()>, longest: Duration) {
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(longest, all_ended).await.is_err() {
        warn!(
            left = connections.len(),
            "Cutting off connections that don't end"
        );
        connections.shutdown().await;
    }
}

/// Whether an accept failed because the client went away meanwhile: nothing to wait for.
fn is_clients_own(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// The places for connections.
struct Slots {
    free: Arc<Semaphore>,
    warned: Option<Instant>,
}

impl Slots {
    fn new(connections: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(connections)),
            warned: None,
        }
    }

    async fn next(&mut self) -> OwnedSemaphorePermit {
        if self.free.available_permits() == 0
            && self
                .warned
                .is_none_or(|warned| warned.elapsed() >= FULL_WARNING_PAUSE)
        {
            self.warned = Some(Instant::now());
            warn!("As many connections as allowed, further ones wait");
        }
        Arc::clone(&self.free)
            .acquire_owned()
            .await
            .expect("the semaphore must never be closed")
    }
}

#[cfg(test)]
mod tests;
