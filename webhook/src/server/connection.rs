//! One client's connection, from its handshake to its end.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::server::Limits;

/// How a listener's connections are served.
pub(super) struct Connection {
    /// None for plaintext.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) shutdown: CancellationToken,
}

impl Connection {
    /// Serves one until it ends; at shutdown an idle one is closed and a request in flight is the last.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream, _slot: OwnedSemaphorePermit) {
        // A response goes out in one write; nothing is gained by waiting for more.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "Failed to set TCP_NODELAY");
        }
        let Some(tls) = &self.tls else {
            return self.serve_http(stream).await;
        };
        // Boxed, so that a connection's memory isn't that of the handshake for all its life.
        let handshake = Box::pin(tokio::time::timeout(
            self.limits.handshake,
            tls.accept(stream),
        ));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = self.shutdown.cancelled() => return,
        };
        match accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => self.serve_http(stream).await,
            Err(error) => debug!(%error, "TLS handshake failed"),
        }
    }

    async fn serve_http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send) {
        let service = TowerToHyperService::new(self.router.clone());
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(self.limits.head)
                .max_buf_size(self.limits.buffer)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "Connection ended early");
        }
    }
}
