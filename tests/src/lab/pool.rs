//! A client's connections: which it has, which it reuses, and what each has brought before.
//!
//! Not `hyper_util`'s pool, since the rule of [`verdict`](super::verdict) must know of each request whether its
//! connection was new, and which pod is at the other end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::failure::Failure;
use super::verdict::On;

/// Connections that a pooling client keeps.
const SIZE: usize = 12;
/// How long a pooled connection lives: long enough to be reused often, short enough that new ones are opened all the
/// time, as clients with a limit on requests or age do.
const LIFE_MS: std::ops::Range<u64> = 10_000..25_000;

/// A client's connections to any of `addresses`, chosen as DNS would: at random.
#[derive(Debug)]
pub struct Pool {
    /// With the number of the source that each is.
    addresses: Vec<(usize, SocketAddr)>,
    pools: bool,
    idle: Mutex<VecDeque<Connection>>,
    open: Arc<AtomicUsize>,
    random: Mutex<fastrand::Rng>,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// The number of the source that it goes to.
    pub source: usize,
    /// The pod that answered on it last; none if nothing was answered yet.
    pod: Option<String>,
    expires: Instant,
    _open: Open,
}

/// Counts open connections.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pool {
    /// No connections yet. A client that doesn't pool has each closed after its first answer.
    /// The `addresses` are sources 0, 1, ….
    pub fn new(addresses: Vec<SocketAddr>, pools: bool, random: fastrand::Rng) -> Self {
        Self::to_sources(addresses.into_iter().enumerate().collect(), pools, random)
    }

    /// The same to sources with numbers of their own.
    pub fn to_sources(
        addresses: Vec<(usize, SocketAddr)>,
        pools: bool,
        random: fastrand::Rng,
    ) -> Self {
        Self {
            addresses,
            pools,
            idle: Mutex::default(),
            open: Arc::default(),
            random: Mutex::new(random),
        }
    }

    /// A connection that is ready for a request. One that its other end closed meanwhile is left out: nothing was
    /// sent on it.
    pub async fn take(&self) -> Result<Connection, Failure> {
        while let Some(mut connection) = self.take_idle() {
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let (source, address, life) = self.choose();
        let failed = |error: &std::io::Error| match Failure::of_error(error) {
            Failure::Other => Failure::Connect,
            failure => failure,
        };
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Failure::of_error(&error))?;
        // How it ends, its requests tell.
        tokio::spawn(async move { drop(connection.await) });
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Connection {
            sender,
            source,
            pod: None,
            expires: Instant::now() + life,
            _open: Open(Arc::clone(&self.open)),
        })
    }

    /// Takes a connection back after a whole answer.
    pub fn give_back(&self, connection: Connection) {
        if self.pools && !connection.sender.is_closed() {
            self.idle().push_back(connection);
        }
    }

    /// The connection that was idle longest, unless there is room for a new one.
    fn take_idle(&self) -> Option<Connection> {
        let now = Instant::now();
        let mut idle = self.idle();
        idle.retain(|connection| connection.expires > now && !connection.sender.is_closed());
        (self.open.load(Ordering::Relaxed) >= SIZE)
            .then(|| idle.pop_front())
            .flatten()
    }

    fn choose(&self) -> (usize, SocketAddr, Duration) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let (source, address) = self.addresses[random.usize(..self.addresses.len())];
        let life = Duration::from_millis(random.u64(LIFE_MS));
        (source, address, life)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether connections are kept.
    pub fn pools(&self) -> bool {
        self.pools
    }
}

impl Connection {
    /// What a request on it would be on.
    pub fn on(&self) -> On {
        match &self.pod {
            Some(pod) => On::OpenConnection { pod: pod.clone() },
            None => On::NewConnection,
        }
    }

    /// Asks for `path` and gives the answer as soon as it begins.
    pub async fn ask(&mut self, path: &str, closes: bool) -> Result<Incoming, Failure> {
        let mut request = Request::get(path).header(header::HOST, "shop.example");
        if closes {
            request = request.header(header::CONNECTION, "close");
        }
        let request = request
            .body(Empty::new())
            .expect("a request made of a path must be valid");
        let answer = self.sender.send_request(request).await;
        let answer = answer.map_err(|error| Failure::of_error(&error))?;
        match Failure::of_status(answer.status()) {
            None => Ok(answer.into_body()),
            Some(failure) => Err(failure),
        }
    }

    /// Asks for `path`, and answers with the pod that gave the whole answer.
    pub async fn exchange(&mut self, path: &str, closes: bool) -> Result<String, Failure> {
        let body = self.ask(path, closes).await?;
        let whole = body.collect().await;
        let whole = whole.map_err(|error| Failure::of_error(&error))?.to_bytes();
        let pod = String::from_utf8_lossy(&whole).trim().to_owned();
        self.pod = Some(pod.clone());
        Ok(pod)
    }
}
