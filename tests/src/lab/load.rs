//! A steady open-loop load: requests leave when the schedule says, whatever came of earlier ones.
//!
//! Each source sends half its requests over a connection of their own and half over a pool of
//! kept-alive ones. Nothing is retried.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::failure::Failure;
use super::report::percentile;

/// Requests of one schedule that may wait for an answer at once. More are not sent, and said.
const IN_FLIGHT: usize = 500;

/// What to send.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the load balancer listens.
    pub frontend: SocketAddr,
    /// Addresses to send from, all of this machine.
    pub sources: Vec<Ipv4Addr>,
    /// Requests per second from all sources together.
    pub rate: u32,
    /// How long to wait for a whole answer.
    pub patience: Duration,
}

/// What was sent and what came of it.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Requests that were sent and either answered or failed.
    pub requests: u64,
    /// Those that failed, by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Requests that were due but not sent, since too many were waiting.
    pub unsent: u64,
    /// Seconds by which each request left late.
    lateness: Vec<f64>,
}

/// A load that runs until [`Load::finish`]; dropped, it ends at once.
#[derive(Debug)]
pub struct Load {
    schedules: JoinSet<()>,
    stop: watch::Sender<bool>,
    tally: Arc<Mutex<Tally>>,
}

#[derive(Debug, Clone)]
struct Source {
    client: Client<HttpConnector, Empty<Bytes>>,
    frontend: SocketAddr,
    patience: Duration,
    closes: bool,
    tally: Arc<Mutex<Tally>>,
}

impl Tally {
    /// All failed requests.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Seconds by which 99 of 100 requests left late at most.
    pub fn lateness_p99(&self) -> f64 {
        percentile(&self.lateness, 0.99).unwrap_or_default()
    }

    fn note(&mut self, outcome: Result<(), Failure>) {
        self.requests += 1;
        if let Err(failure) = outcome {
            *self.failures.entry(failure).or_default() += 1;
        }
    }
}

impl Load {
    /// Begins to send.
    pub fn start(plan: &Plan) -> Self {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (stop, _) = watch::channel(false);
        let mut schedules = JoinSet::new();
        let count = u32::try_from(plan.sources.len() * 2)
            .unwrap_or(u32::MAX)
            .max(1);
        let period = Duration::from_secs(1) * count / plan.rate.max(1);
        let begin = Instant::now();
        let both = plan
            .sources
            .iter()
            .flat_map(|address| [(*address, true), (*address, false)]);
        for ((address, closes), number) in both.zip(0..) {
            let source = Source::new(plan, address, closes, Arc::clone(&tally));
            // Spread over the period, so that the sources don't send in step.
            let first = begin + period * number / count;
            schedules.spawn(source.send(first, period, stop.subscribe()));
        }
        Self {
            schedules,
            stop,
            tally,
        }
    }

    /// Requests so far and failed ones among them.
    pub fn so_far(&self) -> (u64, u64) {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        (tally.requests, tally.failed())
    }

    /// Sends no more, waits for the answers that are awaited and gives the result.
    pub async fn finish(mut self) -> Tally {
        self.stop.send_replace(true);
        while self.schedules.join_next().await.is_some() {}
        self.tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Source {
    fn new(plan: &Plan, address: Ipv4Addr, closes: bool, tally: Arc<Mutex<Tally>>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(address.into()));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            // A client that tries again by itself would hide what the load balancer did.
            .retry_canceled_requests(false)
            // Far below the load balancer's own limit, so that the client is the one who closes.
            .pool_idle_timeout(Duration::from_secs(10))
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(if closes { 0 } else { 16 })
            .build(connector);
        Self {
            client,
            frontend: plan.frontend,
            patience: plan.patience,
            closes,
            tally,
        }
    }

    async fn send(self, first: Instant, period: Duration, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval_at(first, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut waiting = JoinSet::new();
        loop {
            let due = tokio::select! {
                biased;
                _ = stop.changed() => break,
                due = ticks.tick() => due,
            };
            while waiting.try_join_next().is_some() {}
            if waiting.len() < IN_FLIGHT {
                waiting.spawn(self.clone().request(due));
            } else {
                self.tally
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .unsent += 1;
            }
        }
        while waiting.join_next().await.is_some() {}
    }

    async fn request(self, due: Instant) {
        let late = due.elapsed().as_secs_f64();
        let outcome = timeout(self.patience, self.exchange())
            .await
            .unwrap_or(Err(Failure::Timeout));
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.lateness.push(late);
        tally.note(outcome);
    }

    async fn exchange(&self) -> Result<(), Failure> {
        let mut request = Request::get(format!("http://{}/", self.frontend));
        if self.closes {
            request = request.header(header::CONNECTION, "close");
        }
        let request = request
            .body(Empty::new())
            .expect("a request made of an address must be valid");
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| Failure::of_error(&error))?;
        let status = response.status();
        response
            .into_body()
            .collect()
            .await
            .map_err(|error| Failure::of_error(&error))?;
        Failure::of_status(status).map_or(Ok(()), Err)
    }
}
