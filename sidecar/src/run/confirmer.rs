//! The confirmer's HTTPS client: one request at a time over a kept connection, everything bounded.
//!
//! A kept connection that turns out dead counts as closed, not as a failure: the question is asked once more on a new one,
//! which may lead to another replica. Only when that fails too has the confirmer failed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Serialize, de::DeserializeOwned};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::args::{Environment, RunArgs};

/// For one address: name, connection and TLS handshake. One lost packet is sent again after 1 s.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A host that is gone says nothing, and neither does a confirmer in a turn of up to [`crate::contract::HOLD_TURN`]: so
/// its kernel is asked after this silence, and again at each [`PROBE_EVERY`].
const PROBE_AFTER: Duration = Duration::from_secs(5);
/// See [`PROBE_AFTER`].
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// So many probes without an answer end the connection: after 5 + 3 × 2 = 11 s of silence.
const PROBES: u32 = 3;
/// The same for a question that isn't acknowledged, which no probe is sent beside. The kernel uses it instead of the
/// number of probes too: just below the last one's time, so that it ends with that one and not with the next.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const ANSWER_LIMIT: usize = 64 * 1024;
/// How much of a refusal's text goes to the log.
const REFUSAL_LIMIT: usize = 200;

/// Why the confirmer can't be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("failed to configure the confirmer: {0}")]
    Configuration(String),
    #[error("failed to read the token {path:?}")]
    ReadToken {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to use the token: it holds characters that a header can't")]
    Token,
    #[error("failed to connect to {address}")]
    Connect {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to connect to {address} within {} s", CONNECT_WITHIN.as_secs())]
    ConnectTimeout { address: String },
    #[error("failed to send {path}")]
    Send {
        path: &'static str,
        #[source]
        source: hyper::Error,
    },
    #[error("failed to get an answer to {path} within {seconds} s")]
    AnswerTimeout { path: &'static str, seconds: u64 },
    #[error("failed to read the answer to {path}")]
    Receive {
        path: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("failed to ask {path}: {status} {text:?}")]
    Refused {
        path: &'static str,
        status: StatusCode,
        text: String,
    },
    #[error("failed to parse the answer to {path}")]
    Parse {
        path: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Where the confirmer is and how to trust it.
struct Configuration {
    addresses: Vec<String>,
    server_name: ServerName<'static>,
    host: HeaderValue,
    tls: TlsConnector,
    token_file: PathBuf,
}

/// A client, with its connection if one is open.
pub(super) struct Client {
    configuration: Result<Arc<Configuration>, String>,
    /// The address that worked last is tried first.
    preferred: usize,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    /// A client; where the configuration is missing or bad it is one whose every request fails with the reason.
    pub(super) fn new(args: &RunArgs, environment: &Environment) -> Self {
        Self {
            configuration: configure(args, environment).map(Arc::new),
            preferred: 0,
            connection: None,
        }
    }

    /// Another client with the same configuration, and no connection.
    pub(super) fn another(&self) -> Self {
        Self {
            configuration: self.configuration.clone(),
            preferred: 0,
            connection: None,
        }
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    /// Asks, and waits for the answer for at most `within`, connecting not counted.
    pub(super) async fn post<A: DeserializeOwned>(
        &mut self,
        path: &'static str,
        question: &impl Serialize,
        within: Duration,
    ) -> Result<A, Error> {
        let body =
            serde_json::to_vec(question).expect("a message of the contract must be valid JSON");
        let answer = self.exchange(path, body.into(), within).await?;
        serde_json::from_slice(&answer).map_err(|source| Error::Parse { path, source })
    }

    async fn exchange(
        &mut self,
        path: &'static str,
        body: Bytes,
        within: Duration,
    ) -> Result<Bytes, Error> {
        let configuration = self.configuration.clone().map_err(Error::Configuration)?;
        let authorization = configuration.authorization()?;
        let request = || {
            let mut request = Request::post(path)
                .body(Full::new(body.clone()))
                .expect("a path of the contract must be valid");
            let headers = request.headers_mut();
            headers.insert(HOST, configuration.host.clone());
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(AUTHORIZATION, authorization.clone());
            request
        };
        if let Some(mut kept) = self.connection.take()
            && kept.ready().await.is_ok()
        {
            match send(&mut kept, path, request(), within).await {
                // The other end closed it in the meantime; asking twice does no harm.
                Err(Error::Send { .. }) => {}
                outcome => return self.keep(kept, outcome),
            }
        }
        let mut fresh = self.connect(&configuration).await?;
        let outcome = send(&mut fresh, path, request(), within).await;
        self.keep(fresh, outcome)
    }

    /// Keeps the connection after an exchange that left it in order.
    fn keep(
        &mut self,
        connection: SendRequest<Full<Bytes>>,
        outcome: Result<Bytes, Error>,
    ) -> Result<Bytes, Error> {
        if matches!(outcome, Ok(_) | Err(Error::Refused { .. })) {
            self.connection = Some(connection);
        }
        outcome
    }

    async fn connect(
        &mut self,
        configuration: &Configuration,
    ) -> Result<SendRequest<Full<Bytes>>, Error> {
        let count = configuration.addresses.len();
        let mut first_error = None;
        for index in (0..count).map(|offset| (self.preferred + offset) % count) {
            match configuration.connect(&configuration.addresses[index]).await {
                Ok(sender) => {
                    self.preferred = index;
                    return Ok(sender);
                }
                // The first address is the one that should work; that a name can't be resolved would hide why it didn't.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| Error::Configuration("no address".to_owned())))
    }
}

impl Configuration {
    /// Read afresh each time: the kubelet replaces the token.
    fn authorization(&self) -> Result<HeaderValue, Error> {
        let token =
            std::fs::read_to_string(&self.token_file).map_err(|source| Error::ReadToken {
                path: self.token_file.clone(),
                source,
            })?;
        let mut value =
            HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| Error::Token)?;
        value.set_sensitive(true);
        Ok(value)
    }

    async fn connect(&self, address: &str) -> Result<SendRequest<Full<Bytes>>, Error> {
        let connect = async {
            let tcp = TcpStream::connect(address).await?;
            tcp.set_nodelay(true)?;
            notice_dead_host(&tcp);
            let tls = self.tls.connect(self.server_name.clone(), tcp).await?;
            http1::handshake(TokioIo::new(tls))
                .await
                .map_err(io::Error::other)
        };
        let (sender, connection) = tokio::time::timeout(CONNECT_WITHIN, connect)
            .await
            .map_err(|_| Error::ConnectTimeout {
                address: address.to_owned(),
            })?
            .map_err(|source| Error::Connect {
                address: address.to_owned(),
                source,
            })?;
        // Ends with its sender. What it fails with, the request that is under way fails with too.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// Has the kernel look after the other end. A kernel that won't leaves us the turns' own bounds.
fn notice_dead_host(tcp: &TcpStream) {
    let socket = SockRef::from(tcp);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN));
}

async fn send(
    connection: &mut SendRequest<Full<Bytes>>,
    path: &'static str,
    request: Request<Full<Bytes>>,
    within: Duration,
) -> Result<Bytes, Error> {
    let exchange = async {
        let answer = connection
            .send_request(request)
            .await
            .map_err(|source| Error::Send { path, source })?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_LIMIT).collect().await;
        let body = body
            .map_err(|source| Error::Receive { path, source })?
            .to_bytes();
        if head.status == StatusCode::OK {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body)
            .chars()
            .take(REFUSAL_LIMIT)
            .collect();
        Err(Error::Refused {
            path,
            status: head.status,
            text,
        })
    };
    tokio::time::timeout(within, exchange)
        .await
        .unwrap_or(Err(Error::AnswerTimeout {
            path,
            seconds: within.as_secs(),
        }))
}

fn configure(args: &RunArgs, environment: &Environment) -> Result<Configuration, String> {
    use crate::contract::{ENV_CA, ENV_CONFIRMER};
    let list = environment.confirmer.as_deref().unwrap_or_default();
    let addresses: Vec<String> = list
        .split(',')
        .map(str::trim)
        .filter(|address| !address.is_empty())
        .map(str::to_owned)
        .collect();
    if addresses.is_empty() {
        return Err(format!(
            "{ENV_CONFIRMER} {list:?} names no address; allowed is a comma list of host:port"
        ));
    }
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_slice_iter(environment.ca.as_deref().unwrap_or_default().as_bytes())
    {
        let certificate = certificate.map_err(|error| format!("{ENV_CA} is not PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| format!("{ENV_CA} holds a bad certificate: {error}"))?;
    }
    if roots.is_empty() {
        return Err(format!(
            "{ENV_CA} holds no certificate; allowed are CA certificates in PEM"
        ));
    }
    let bad_name = || format!("--server-name {:?} is not a DNS name", args.server_name);
    let server_name = ServerName::try_from(args.server_name.clone()).map_err(|_| bad_name())?;
    let host = HeaderValue::try_from(&args.server_name).map_err(|_| bad_name())?;
    let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    tls.resumption = Resumption::in_memory_sessions(1);
    let tls = TlsConnector::from(Arc::new(tls));
    Ok(Configuration {
        addresses,
        server_name,
        host,
        tls,
        token_file: args.token_file.clone(),
    })
}
