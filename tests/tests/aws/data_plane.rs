//! A load balancer's nodes, each of which hears of a deregistration late, and the users who send by them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tests::aws::{FakeAws, Kind};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::scene::unix_ms_of;

/// Time between two requests: 100 a second.
const PERIOD: Duration = Duration::from_millis(10);

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// When each target was deregistered, if it was.
type Targets = Arc<Mutex<BTreeMap<SocketAddr, Option<Instant>>>>;

/// Sends until it is finished or dropped.
pub(crate) struct DataPlane {
    targets: Targets,
    lags: Vec<Duration>,
    follow: JoinHandle<()>,
    load: JoinHandle<()>,
    tally: Arc<Mutex<Tally>>,
}

/// What users saw.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) failed: Vec<String>,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        self.follow.abort();
        self.load.abort();
    }
}

impl DataPlane {
    /// Follows `arn` with one node for each lag, and sends as soon as there is anybody to send to.
    pub(crate) fn start(fake: &FakeAws, arn: &str, lags: &[Duration]) -> Self {
        let targets = Targets::default();
        let tally = Arc::new(Mutex::new(Tally::default()));
        let mut changes = fake.subscribe(arn);
        let followed = Arc::clone(&targets);
        let follow = tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let mut targets = followed.lock().unwrap_or_else(PoisonError::into_inner);
                match (change.kind, change.target) {
                    (Kind::Registered, Some(target)) => drop(targets.insert(target, None)),
                    (Kind::Deregistered, Some(target)) => {
                        targets.insert(target, Some(change.at));
                    }
                    _ => targets.values_mut().for_each(|at| *at = Some(change.at)),
                }
            }
        });
        let load = tokio::spawn(send(
            Arc::clone(&targets),
            lags.to_vec(),
            Arc::clone(&tally),
        ));
        Self {
            targets,
            lags: lags.to_vec(),
            follow,
            load,
            tally,
        }
    }

    /// Until when the slowest node may have chosen `target`, in milliseconds of the wall clock.
    pub(crate) fn stopped(&self, target: SocketAddr) -> u64 {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let deregistered = targets[&target].expect("the target must be deregistered");
        let lag = self.lags.iter().max().unwrap();
        unix_ms_of(deregistered) + u64::try_from(lag.as_millis()).unwrap()
    }

    /// Ends the load and gives the result.
    pub(crate) fn finish(&self) -> Tally {
        self.load.abort();
        self.tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Whom the node with this lag may send to.
fn choices(targets: &Targets, lag: Duration) -> Vec<SocketAddr> {
    let now = Instant::now();
    let targets = targets.lock().unwrap_or_else(PoisonError::into_inner);
    let is_chosen = |at: &Option<Instant>| at.is_none_or(|at| now < at + lag);
    let chosen = targets.iter().filter(|(_, at)| is_chosen(at));
    chosen.map(|(target, _)| *target).collect()
}

/// Open loop: requests leave when the schedule says, whatever came of earlier ones. Each node has a pool of kept-alive
/// connections, and every other request has one of its own.
async fn send(targets: Targets, lags: Vec<Duration>, tally: Arc<Mutex<Tally>>) {
    let mk_client = || -> HttpClient {
        Client::builder(TokioExecutor::new())
            // A client that tries again by itself would hide what the load balancer did.
            .retry_canceled_requests(false)
            .build_http()
    };
    let clients: Vec<HttpClient> = lags.iter().map(|_| mk_client()).collect();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut waiting = JoinSet::new();
    let mut turns = vec![0_usize; lags.len()];
    for number in (0..lags.len()).cycle() {
        ticks.tick().await;
        while waiting.try_join_next().is_some() {}
        let choices = choices(&targets, lags[number]);
        let turn = turns[number];
        turns[number] += 1;
        let Some(target) = choices.get(turn % choices.len().max(1)).copied() else {
            // Before the first one there is nobody to serve users, and nobody asks.
            continue;
        };
        let (client, tally) = (clients[number].clone(), Arc::clone(&tally));
        let closes = (turn / choices.len()).is_multiple_of(2);
        waiting.spawn(async move {
            let outcome = timeout(PATIENCE, exchange(&client, target, closes)).await;
            let outcome = outcome.unwrap_or_else(|_| Err("no answer".to_owned()));
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.requests += 1;
            if let Err(error) = outcome {
                tally
                    .failed
                    .push(format!("{target} by node {number}: {error}"));
            }
        });
    }
}

async fn exchange(client: &HttpClient, target: SocketAddr, closes: bool) -> Result<(), String> {
    let mut request = Request::get(format!("http://{target}/"));
    if closes {
        request = request.header(header::CONNECTION, "close");
    }
    let request = request
        .body(Empty::new())
        .map_err(|error| error.to_string())?;
    let sent = client.request(request).await;
    let response = sent.map_err(|error| format!("{error:?}"))?;
    let status = response.status();
    let body = response.into_body().collect().await;
    body.map_err(|error| format!("{error:?}"))?;
    if status.is_success() {
        Ok(())
    } else {
        Err(status.to_string())
    }
}
