//! A confirmer that answers what a test tells it to.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use sidecar::contract::{HELLO_PATH, HOLD_PATH};
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// By which the waiter asks for this confirmer.
pub(crate) const SERVER_NAME: &str = "0123abcd.prestop-gate-confirmer.prestop-gate.svc";

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// How many were asked before on the same path.
    pub(crate) number: usize,
    /// All that was asked before on the same path, and this.
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) body: Value,
}

/// What to do about it.
pub(crate) enum Reply {
    /// 200 with this body.
    Answer(Value),
    /// The same, later.
    After(Duration, Value),
    /// This status.
    Status(u16),
    /// Nothing, for ever.
    Silence,
    /// 200 with this body, then close the connection.
    Last(Value),
    /// Close the connection instead of an answer.
    HangUp,
    /// Nothing, and from now on the kernel doesn't answer on this connection either: as if the host were gone.
    Vanish,
}

pub(crate) fn hold(seconds_left: f64) -> Value {
    json!({"protocol": 1, "verdict": "hold", "secondsLeft": seconds_left, "awaiting": ["endpoint of service a"]})
}

pub(crate) fn go(reason: &str) -> Value {
    json!({"protocol": 1, "verdict": "go", "reason": reason, "newField": 1})
}

pub(crate) fn restart() -> Value {
    json!({"protocol": 1, "verdict": "restart", "reason": "restart"})
}

pub(crate) fn wait(reason: &str, seconds_left: f64) -> Value {
    json!({"protocol": 1, "verdict": "wait", "reason": reason, "secondsLeft": seconds_left})
}

/// A running confirmer; it ends when it is dropped, and so do its connections.
pub(crate) struct Confirmer {
    pub(crate) address: SocketAddr,
    /// Its CA, PEM.
    pub(crate) ca: String,
    asked: Arc<Mutex<Vec<Question>>>,
    _stop: oneshot::Sender<()>,
}

type Script = dyn Fn(&Question) -> Reply + Send + Sync;

impl Confirmer {
    /// Answers holds by `script`, and every hello.
    pub(crate) fn start(script: impl Fn(&Question) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with_hello(
            |_| Reply::Answer(json!({"protocol": 1, "version": "9"})),
            script,
        )
    }

    /// Answers both by script.
    pub(crate) fn start_with_hello(
        hello: impl Fn(&Question) -> Reply + Send + Sync + 'static,
        script: impl Fn(&Question) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (tls, ca) = identity();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (stop, mut stopped) = oneshot::channel::<()>();
        let script: Arc<Script> = Arc::new(move |question| {
            if question.path == HELLO_PATH {
                hello(question)
            } else {
                script(question)
            }
        });
        let record = Arc::clone(&asked);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let stream = tokio::select! {
                        accepted = listener.accept() => accepted.unwrap().0,
                        _ = &mut stopped => return,
                    };
                    tokio::spawn(serve(
                        tls.clone(),
                        stream,
                        Arc::clone(&script),
                        Arc::clone(&record),
                    ));
                }
            });
            // Dropping the runtime here drops its connections.
        });
        Self {
            address,
            ca,
            asked,
            _stop: stop,
        }
    }

    /// All holds that were asked for so far.
    pub(crate) fn holds(&self) -> Vec<Question> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|question| question.path == HOLD_PATH)
            .cloned()
            .collect()
    }

    /// All hellos so far.
    pub(crate) fn hellos(&self) -> Vec<Question> {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|question| question.path == HELLO_PATH)
            .cloned()
            .collect()
    }
}

fn identity() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![SERVER_NAME.to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), authority.pem())
}

async fn serve(
    tls: TlsAcceptor,
    stream: TcpStream,
    script: Arc<Script>,
    record: Arc<Mutex<Vec<Question>>>,
) {
    let stream = stream.into_std().unwrap();
    let tcp = stream.try_clone().unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    // A client that doesn't trust us ends here.
    let Ok(stream) = tls.accept(stream).await else {
        return;
    };
    let service = service_fn(|request| answer(request, &*script, &record, &tcp));
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    script: &Script,
    record: &Mutex<Vec<Question>>,
    tcp: &std::net::TcpStream,
) -> Result<Response<Full<Bytes>>, &'static str> {
    let (head, body) = request.into_parts();
    let body = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
    let path = head.uri.path().to_owned();
    let authorization = head.headers[AUTHORIZATION].to_str().unwrap().to_owned();
    assert_eq!(head.headers["host"], SERVER_NAME);
    let question = {
        let mut record = record.lock().unwrap();
        let number = record.iter().filter(|earlier| earlier.path == path).count();
        record.push(Question {
            number,
            path,
            authorization,
            body,
        });
        record.last().unwrap().clone()
    };
    let mut response = Response::new(Full::default());
    let body = match script(&question) {
        Reply::Answer(body) => body,
        Reply::After(pause, body) => {
            tokio::time::sleep(pause).await;
            body
        }
        Reply::Status(status) => {
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            json!({"error": "not now"})
        }
        Reply::Silence => std::future::pending().await,
        Reply::Vanish => {
            // One instruction: of each packet that comes in keep 0 bytes.
            let deaf = SockFilter::new(0x06, 0, 0, 0);
            SockRef::from(tcp).attach_filter(&[deaf]).unwrap();
            std::future::pending().await
        }
        Reply::HangUp => return Err("hung up"),
        Reply::Last(body) => {
            response
                .headers_mut()
                .insert("connection", "close".parse().unwrap());
            body
        }
    };
    *response.body_mut() = Full::from(body.to_string());
    Ok(response)
}
