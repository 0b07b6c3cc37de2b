//! Clients that send, and note what they don't get. Which of them a kind of traffic consists of is in
//! [`clients`](super::clients).
//!
//! Requests leave when the schedule says, whatever came of earlier ones (an open loop). Nothing is retried.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::balancer::Layer;
use super::failure::Failure;
use super::pods::unix_ms;
use super::pool::Pool;
use super::scraper::scrape;
use super::tally::Tally;
use super::verdict::{Miss, On};

/// Requests of one client that may wait for an answer at once. More are not sent, and said.
const IN_FLIGHT: usize = 200;
/// How long to wait for a whole answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before an endless answer that ended is asked for anew.
const STREAM_PAUSE: Duration = Duration::from_secs(1);

/// One client.
#[derive(Debug)]
pub struct Client {
    /// Its connections.
    pub pool: Pool,
    /// What it asks through.
    pub layer: Layer,
    /// What it asks for.
    pub path: &'static str,
    /// How, and how often.
    pub asks: Asks,
    /// Whether what it asks through are the load balancer's sources, whose answers are counted.
    pub counts_sources: bool,
}

/// How a client asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Asks {
    /// This many requests per second.
    PerSecond(f64),
    /// For endless answers, this many at once.
    Endlessly(usize),
    /// Pods directly, each once in this time, over a new connection; what comes of it counts for nothing.
    EachPodEvery(Duration),
}

/// A load that runs until [`Load::finish`]; dropped, it ends at once.
#[derive(Debug)]
pub struct Load {
    clients: JoinSet<()>,
    stop: watch::Sender<bool>,
    tally: Arc<Mutex<Tally>>,
}

impl Load {
    /// Begins to send. `pods` is asked for the pods that are there now.
    pub fn start(
        clients: Vec<Client>,
        pods: impl Fn() -> Vec<SocketAddr> + Clone + Send + 'static,
    ) -> Self {
        let tally = Arc::default();
        let (stop, _) = watch::channel(false);
        let mut running = JoinSet::new();
        let count = u32::try_from(clients.len()).unwrap_or(u32::MAX).max(1);
        for (client, number) in clients.into_iter().zip(0_u32..) {
            let sender = Sender {
                client: Arc::new(client),
                tally: Arc::clone(&tally),
            };
            let stop = stop.subscribe();
            match sender.client.asks {
                Asks::PerSecond(rate) => {
                    let period = Duration::from_secs_f64(1.0 / rate);
                    // Spread over the period, so that clients don't send in step.
                    let first = Instant::now() + period * number / count;
                    running.spawn(sender.send(first, period, stop));
                }
                Asks::Endlessly(at_once) => {
                    for _ in 0..at_once {
                        running.spawn(sender.clone().stream(stop.clone()));
                    }
                }
                Asks::EachPodEvery(period) => {
                    running.spawn(scrape(period, sender.client.path, pods.clone(), stop));
                }
            }
        }
        Self {
            clients: running,
            stop,
            tally,
        }
    }

    /// Requests so far and those among them that brought no answer.
    pub fn so_far(&self) -> (u64, u64) {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        (tally.requests, tally.missed())
    }

    /// Sends no more, waits for the answers that are awaited and gives the result.
    pub async fn finish(mut self) -> Tally {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            note_lost(&self.tally, &ended);
        }
        self.tally
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[derive(Debug, Clone)]
struct Sender {
    client: Arc<Client>,
    tally: Arc<Mutex<Tally>>,
}

impl Sender {
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
            while let Some(ended) = waiting.try_join_next() {
                note_lost(&self.tally, &ended);
            }
            if waiting.len() < IN_FLIGHT {
                waiting.spawn(self.clone().request(due));
            } else {
                self.tally(|tally| tally.unsent += 1);
            }
        }
        while let Some(ended) = waiting.join_next().await {
            note_lost(&self.tally, &ended);
        }
    }

    async fn request(self, due: Instant) {
        let late = due.elapsed().as_secs_f64();
        self.tally(|tally| tally.sent(unix_ms(), late));
        let Client { pool, path, .. } = &*self.client;
        let mut connection = match timeout(PATIENCE, pool.take()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(failure)) => return self.missed(failure, On::NewConnection),
            Err(_) => return self.missed(Failure::Timeout, On::NewConnection),
        };
        let on = connection.on();
        let exchange = connection.exchange(path, !pool.pools());
        match timeout(PATIENCE, exchange).await {
            Ok(Ok(pod)) => {
                self.served(&pod, connection.source);
                pool.give_back(connection);
            }
            Ok(Err(failure)) => self.missed(failure, on),
            Err(_) => self.missed(Failure::Timeout, on),
        }
    }

    async fn stream(self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            tokio::select! {
                _ = stop.changed() => return,
                () = self.follow_stream() => {}
            }
            tokio::time::sleep(STREAM_PAUSE).await;
        }
    }

    /// Asks for an endless answer and reads it until it ends, which is always a miss.
    async fn follow_stream(&self) {
        use http_body_util::BodyExt as _;

        self.tally(|tally| tally.sent(unix_ms(), 0.0));
        let Client { pool, path, .. } = &*self.client;
        let opened = timeout(PATIENCE, async {
            let mut connection = pool.take().await?;
            let mut body = connection.ask(path, true).await?;
            let first = body.frame().await;
            let first = first
                .and_then(Result::ok)
                .and_then(|frame| frame.into_data().ok());
            let first = first.ok_or(Failure::Closed)?;
            let pod = String::from_utf8_lossy(&first).trim().to_owned();
            Ok((connection, body, pod))
        });
        let (connection, mut body, pod) = match opened.await {
            Ok(Ok(opened)) => opened,
            Ok(Err(failure)) => return self.missed(failure, On::NewConnection),
            Err(_) => return self.missed(Failure::Timeout, On::NewConnection),
        };
        self.served(&pod, connection.source);
        // A second of silence is no end of it, half a minute is.
        while let Ok(Some(Ok(_))) = timeout(PATIENCE * 6, body.frame()).await {}
        self.missed(Failure::Closed, On::EndlessAnswer { pod });
    }

    fn served(&self, pod: &str, source: usize) {
        if self.client.counts_sources {
            self.tally(|tally| tally.served(pod, source, unix_ms()));
        }
    }

    fn missed(&self, failure: Failure, on: On) {
        let miss = Miss {
            at: unix_ms(),
            failure,
            layer: self.client.layer,
            on,
        };
        self.tally(|tally| tally.misses.push(miss));
    }

    fn tally(&self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// A task that panicked counts neither an answer nor a miss.
fn note_lost(tally: &Mutex<Tally>, ended: &Result<(), JoinError>) {
    if ended.is_err() {
        tally.lock().unwrap_or_else(PoisonError::into_inner).lost += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn task_that_broke_down_is_not_forgotten() {
        let mut load = Load::start(Vec::new(), Vec::new);
        load.clients.spawn(async {});
        load.clients.spawn(async {});
        load.clients.spawn(async { panic!("it must be noted") });
        assert_eq!(load.finish().await.lost, 1);
    }
}
