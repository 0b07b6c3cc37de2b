//! The fake's HTTP side: connections, forms, and the faults that only a connection can have.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Form;
use axum::body::Body;
use axum::extract::FromRequest;
use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming as HyperBody};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::api::{Api, Incoming, Reply};
use super::faults::Effect;

/// How a reset is asked for; the connection ends without an answer.
#[derive(Debug, thiserror::Error)]
#[error("an injected fault resets the connection")]
struct Reset;

type AnswerBody = BoxBody<Bytes, Reset>;

/// Serves until it is dropped, and its connections with it.
pub(super) async fn serve(listener: TcpListener, api: Arc<Mutex<Api>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                // Out of file descriptors, or a client that is gone already.
                let Ok((stream, peer)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                };
                connections.spawn(connection(stream, peer.ip(), Arc::clone(&api)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, peer: IpAddr, api: Arc<Mutex<Api>>) {
    // A second handle, because hyper keeps the first to itself.
    let Ok(stream) = stream.into_std() else {
        return;
    };
    let handle = stream.try_clone();
    let Ok(stream) = TcpStream::from_std(stream) else {
        return;
    };
    let service = service_fn(|request| answer(request, peer, Arc::clone(&api)));
    let ended = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
    let is_reset = ended.is_err_and(|error| {
        std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<Reset>)
    });
    if let (true, Ok(handle)) = (is_reset, handle) {
        // Closing now sends RST rather than FIN.
        let _ = SockRef::from(&handle).set_linger(Some(Duration::ZERO));
    }
}

async fn answer(
    request: Request<HyperBody>,
    peer: IpAddr,
    api: Arc<Mutex<Api>>,
) -> Result<Response<AnswerBody>, Reset> {
    let (parts, body) = request.into_parts();
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let form = Request::from_parts(parts.clone(), Body::new(body));
    let Ok(Form(fields)) = Form::<Vec<(String, String)>>::from_request(form, &()).await else {
        return Ok(respond(400, full("failed to read the form")));
    };
    let incoming = Incoming {
        authorization: header("authorization"),
        token: header("x-amz-security-token"),
        peer: Some(peer),
        params: fields.into_iter().collect(),
    };
    let Reply {
        status,
        body,
        effect,
    } = {
        let mut api = api.lock().unwrap_or_else(PoisonError::into_inner);
        api.call(&incoming, now())
    };
    match effect {
        Some(Effect::Slow(time)) => tokio::time::sleep(time).await,
        Some(Effect::Hang) => std::future::pending().await,
        Some(Effect::Malformed) => {
            return Ok(respond(200, full("<DescribeTargetHealthResponse><oops")));
        }
        Some(Effect::Truncated) => return Ok(truncated()),
        Some(Effect::Reset) => return Err(Reset),
        Some(Effect::Status(_) | Effect::ExpiredToken | Effect::Throttled) | None => {}
    }
    Ok(respond(status, full(body)))
}

/// Time as the caller's runtime has it, so that tests can pause it.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn respond(status: u16, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let xml = header::HeaderValue::from_static("text/xml");
    response.headers_mut().insert(header::CONTENT_TYPE, xml);
    response
}

fn full(text: impl Into<Bytes>) -> AnswerBody {
    Full::new(text.into())
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// Says that 1000 bytes follow, sends a few and gives up.
fn truncated() -> Response<AnswerBody> {
    let pieces = [
        Ok(Frame::data(Bytes::from_static(
            b"<DescribeTargetHealthResponse><Desc",
        ))),
        Err(Reset),
    ];
    let mut response = respond(200, BodyExt::boxed(StreamBody::new(stream::iter(pieces))));
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, 1000.into());
    response
}

/// Binds `listen`, for the first time or again.
pub(super) async fn bind(listen: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(listen).await
}
