//! An endless answer, as a websocket or an event stream is one: only the process's end ends it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Pause between two pieces: far below any load balancer's idle timeout.
const PERIOD: Duration = Duration::from_secs(1);

/// A body that says one thing at once, and then a dot a second.
pub(crate) struct Ticks {
    first: Option<Bytes>,
    ticks: Interval,
}

impl Ticks {
    /// A body that begins with `first`.
    pub(crate) fn after(first: Bytes) -> Self {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Self {
            first: Some(first),
            ticks,
        }
    }
}

impl Body for Ticks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        ready!(self.ticks.poll_tick(context));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b".")))))
    }
}
