//! A real `HAProxy` as a load balancer's data plane, driven over its runtime API.
//!
//! Each source is a frontend and a backend of its own: its own servers, states, pools and two threads' worth of
//! workers, and nothing shared with the others but the process. Over [`Layer::Requests`] it models an ALB: requests
//! are balanced one by one and connections to targets are pooled and shared (`http-reuse always`), so during the lag a
//! request may come over a new connection or over a pooled one. Once a slot is in maintenance, neither is chosen for a
//! new request, and requests that are under way finish. Over [`Layer::Connections`] it models an NLB: connections
//! are balanced one by one, and stay until either end closes them, also those of a slot in maintenance. Nothing is
//! hidden: no retries, no redispatch, no health checks.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::balancer::Layer;

/// Debian's `HAProxy`; `/usr/sbin` is not on everybody's path.
const HAPROXY: &str = "/usr/sbin/haproxy";
/// How long `HAProxy` may take to answer, at its start and later.
const PATIENCE: Duration = Duration::from_secs(5);
/// Sets of ports that are tried.
const PORT_TRIES: usize = 5;

/// Why `HAProxy` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No place for its files.
    #[error("failed to write HAProxy's configuration")]
    Files(#[source] io::Error),
    /// No ports for it.
    #[error("failed to find free ports")]
    Ports(#[source] io::Error),
    /// It isn't there, or may not be run.
    #[error("failed to start {HAPROXY}")]
    Spawn(#[source] io::Error),
    /// It ended or stayed silent.
    #[error("failed to see HAProxy start: {0}")]
    Silent(String),
    /// Its socket can't be used.
    #[error("failed to ask HAProxy `{command}`")]
    Socket {
        /// What was asked.
        command: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// It said no.
    #[error("failed to have HAProxy do `{command}`: {answer}")]
    Refused {
        /// What was asked.
        command: String,
        /// What it said.
        answer: String,
    },
}

/// A running `HAProxy`; it ends when this is dropped, and with this process in any case.
#[derive(Debug)]
pub struct Haproxy {
    child: Child,
    runtime: Runtime,
    // Kept for its drop, which removes the files.
    _folder: TempDir,
}

/// Its runtime API.
#[derive(Debug, Clone)]
pub struct Runtime {
    socket: PathBuf,
}

impl Haproxy {
    /// Starts one with so many `sources` of `slots` each on free ports, and answers with these too. It can't say which
    /// it chose itself; so they are chosen here, and others if somebody took one of them meanwhile.
    pub async fn start_anywhere(
        layer: Layer,
        sources: usize,
        slots: usize,
    ) -> Result<(Self, Vec<SocketAddr>), Error> {
        let mut tries = 1;
        loop {
            let frontends = free_ports(sources).map_err(Error::Ports)?;
            match Self::start(layer, &frontends, slots).await {
                Ok(started) => return Ok((started, frontends)),
                Err(Error::Silent(_)) if tries < PORT_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts one with a source on each of `frontends`, of `slots` empty server slots each.
    pub async fn start(
        layer: Layer,
        frontends: &[SocketAddr],
        slots: usize,
    ) -> Result<Self, Error> {
        let folder = tempfile::Builder::new()
            .prefix("haproxy-")
            .tempdir()
            .map_err(Error::Files)?;
        let (file, socket, log) = (
            folder.path().join("haproxy.cfg"),
            folder.path().join("admin"),
            folder.path().join("log"),
        );
        let configuration = configuration(layer, frontends, slots, &socket);
        std::fs::write(&file, configuration).map_err(Error::Files)?;
        // Dropping the child ends HAProxy when this process ends well or panics, the parent-death signal when it is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", HAPROXY, "-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(Error::Files)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::Spawn)?;
        let mut started = Self {
            child,
            runtime: Runtime { socket },
            _folder: folder,
        };
        started.wait_until_ready(&log).await?;
        Ok(started)
    }

    /// The way to change its servers.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Waits until it ends, which it does not by itself.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }

    async fn wait_until_ready(&mut self, log: &Path) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        while self.runtime.ask("show info").await.is_err() {
            let ended = matches!(self.child.try_wait(), Ok(Some(_)));
            if ended || Instant::now() > deadline {
                return Err(Error::Silent(
                    std::fs::read_to_string(log).unwrap_or_default(),
                ));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

impl Runtime {
    /// Lets `slot` of `source`, which is counted from 0, send to `address` from now on. The slot must be out of use.
    pub async fn add(&self, source: usize, slot: usize, address: SocketAddr) -> Result<(), Error> {
        let (ip, port) = (address.ip(), address.port());
        let server = format!("set server source{source}/slot{slot}");
        self.order(&format!("{server} addr {ip} port {port}"))
            .await?;
        self.order(&format!("{server} state ready")).await
    }

    /// Lets `slot` of `source` send nothing new from now on.
    pub async fn remove(&self, source: usize, slot: usize) -> Result<(), Error> {
        let command = format!("set server source{source}/slot{slot} state maint");
        self.order(&command).await
    }

    async fn order(&self, command: &str) -> Result<(), Error> {
        let answer = self.ask(command).await.map_err(|source| Error::Socket {
            command: command.to_owned(),
            source,
        })?;
        if is_accepted(&answer) {
            return Ok(());
        }
        Err(Error::Refused {
            command: command.to_owned(),
            answer: answer.trim().to_owned(),
        })
    }

    async fn ask(&self, command: &str) -> io::Result<String> {
        let exchange = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        timeout(PATIENCE, exchange).await?
    }
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> io::Result<Vec<SocketAddr>> {
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    // All are held until the last is found, so that they differ.
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind(any)).collect();
    let addresses = listeners.into_iter().map(|listener| listener?.local_addr());
    addresses.collect()
}

/// `HAProxy` answers a change of state with an empty line and a change of address with what it changed.
fn is_accepted(answer: &str) -> bool {
    let answer = answer.trim();
    answer.is_empty()
        || answer.starts_with("IP changed")
        || answer.starts_with("no need to change the addr")
}

/// The whole configuration. Connecting may take 3 s rather than an ALB's 10 s: such a request has failed either way.
fn configuration(layer: Layer, frontends: &[SocketAddr], slots: usize, socket: &Path) -> String {
    let mut text = format!(
        "global
  nbthread 2
  maxconn 4000
  stats socket {socket} level admin
defaults
  retries 0
  no option redispatch
  timeout connect 3s
",
        socket = socket.display()
    );
    text += match layer {
        Layer::Requests => {
            "  mode http
  option http-keep-alive
  http-reuse always
  timeout client 60s
  timeout server 10s
  timeout http-keep-alive 60s
"
        }
        // 350 s is an NLB's own idle timeout.
        Layer::Connections => {
            "  mode tcp
  timeout client 350s
  timeout server 350s
"
        }
    };
    for (source, frontend) in frontends.iter().enumerate() {
        let _ = write!(
            text,
            "frontend in{source}
  bind {frontend}
  default_backend source{source}
backend source{source}
  balance roundrobin
  server-template slot 1-{slots} 127.0.0.1:9 disabled
"
        );
    }
    text
}

#[cfg(test)]
mod tests;
