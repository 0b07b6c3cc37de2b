//! The HTTP/1.1 service. Says on stdout when it started, got SIGTERM and ended.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::LocalSet;

use crate::args::{OnSigterm, Serve};
use crate::events;
use crate::state::State;
use crate::stream::Ticks;

/// Time to wait after a failed accept: it fails for lack of descriptors, and would again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until SIGTERM or SIGINT ends it.
pub(crate) async fn run(options: Serve) -> io::Result<()> {
    let Serve {
        port,
        pod,
        work,
        on_sigterm,
        records,
    } = options;
    // Before anything is said or served: a PID 1 without handlers can't be asked to go.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let service = Service {
        state: Rc::new(State::new(pod, work)),
        records,
        connections: GracefulShutdown::new(),
    };
    service.say("started");
    LocalSet::new()
        .run_until(async {
            loop {
                service
                    .accept_until_signal(&listener, &mut terminate, &mut interrupt)
                    .await;
                service.say("sigterm");
                if on_sigterm != OnSigterm::Ignore {
                    break;
                }
            }
            drop(listener);
            service.end(on_sigterm).await;
        })
        .await;
    Ok(())
}

struct Service {
    state: Rc<State>,
    records: Vec<PathBuf>,
    connections: GracefulShutdown,
}

impl Service {
    async fn accept_until_signal(
        &self,
        listener: &TcpListener,
        terminate: &mut Signal,
        interrupt: &mut Signal,
    ) {
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => self.spawn(stream),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    fn spawn(&self, stream: TcpStream) {
        let _ = stream.set_nodelay(true);
        let state = Rc::clone(&self.state);
        let accepted = events::unix_ms();
        let answer = service_fn(move |request| answer(Rc::clone(&state), accepted, request));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), answer);
        let watched = self.connections.watch(connection);
        // How a client's connection ends is the client's business.
        tokio::task::spawn_local(async move { drop(watched.await) });
    }

    async fn end(self, on_sigterm: OnSigterm) {
        let Self {
            state,
            records,
            connections,
        } = self;
        if let OnSigterm::Drain(limit) = on_sigterm {
            let _ = tokio::time::timeout(limit, connections.shutdown()).await;
        }
        events::emit(&state.event("exit", events::unix_ms()), &records);
    }

    fn say(&self, event: &str) {
        events::emit(&self.state.event(event, events::unix_ms()), &self.records);
    }
}

async fn answer(
    state: Rc<State>,
    accepted: u64,
    request: Request<Incoming>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let path = request.uri().path();
    let streams = path == "/stream";
    let answer = state.answer(path, accepted, events::unix_ms());
    if !answer.after.is_zero() {
        tokio::time::sleep(answer.after).await;
    }
    let first = Bytes::from(answer.body);
    let body = if streams {
        Ticks::after(first).boxed_unsync()
    } else {
        Full::new(first).boxed_unsync()
    };
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    Ok(response)
}
