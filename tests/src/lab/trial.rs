//! One trial: deploy a variant, load it through the load balancer, restart its rollout, count.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::Client;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep};

use super::endpoints::{self, Following};
use super::haproxy::Haproxy;
use super::ledger::{Ledger, Seen};
use super::load::{Load, Plan, Tally};
use super::report::{Outcome, Row, median};
use super::rollout::{PATIENCE as ROLLOUT_PATIENCE, Rollout};
use super::story::Story;
use super::variant::Variant;
use super::{pods, workload};

/// Time without any change before the first restart: no request may fail in it.
const BASELINE: Duration = Duration::from_secs(5);
/// Time under load after the last pod is out of the load balancer.
const AFTERMATH: Duration = Duration::from_secs(3);
/// Longest time for deleted pods to be gone and out of the load balancer: the default grace plus max-wait, and more.
const GONE_PATIENCE: Duration = Duration::from_secs(150);
/// A pod's last words may come after its end; more than this is not waited for.
const LOG_PATIENCE: Duration = Duration::from_secs(5);
/// Server slots in the load balancer: the replicas, those that linger, and room.
const SLOTS: usize = 32;
/// A load that left later than this was not the one that was planned.
const LATENESS_LIMIT_SECONDS: f64 = 1.0;

/// What all trials of a run have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The app's image.
    pub image: String,
    /// Replicas of the Deployment.
    pub replicas: usize,
    /// How often the rollout is restarted.
    pub restarts: usize,
    /// How late the load balancer drops a target.
    pub lag: Duration,
    /// Requests per second.
    pub rate: u32,
    /// Requests to send at least.
    pub min_requests: u64,
}

/// One variant under load.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Trial {
    client: Client,
    rollout: Rollout,
    settings: Settings,
    variant: Variant,
    story: Story,
    ledger: Arc<Mutex<Ledger>>,
    progress: Arc<Mutex<(u64, u64)>>,
}

impl Trial {
    /// A trial that is still to run.
    pub fn new(client: Client, settings: Settings, variant: Variant, story: Story) -> Self {
        Self {
            rollout: Rollout::new(client.clone(), variant, settings.replicas),
            client,
            settings,
            variant,
            story,
            ledger: Arc::default(),
            progress: Arc::default(),
        }
    }

    /// The variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Requests so far and failed ones among them.
    pub fn so_far(&self) -> (u64, u64) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs it. Everything that it started outside the cluster ends with the future.
    pub async fn run(self) -> Result<Outcome> {
        self.rollout.deploy(&self.settings.image).await?;
        self.say(&format!("{} pods are ready", self.settings.replicas));
        let frontend = free_port()?;
        let mut haproxy = Haproxy::start(frontend, SLOTS).await?;
        let (tell, hear) = unbounded_channel();
        let following = Following {
            namespace: self.rollout.namespace().to_owned(),
            service: workload::NAME.to_owned(),
            lag: self.settings.lag,
            slots: SLOTS,
        };
        let endpoints = endpoints::follow(
            self.client.clone(),
            following,
            haproxy.runtime(),
            tell.clone(),
        );
        let pods = pods::follow(
            self.client.clone(),
            self.rollout.namespace().to_owned(),
            tell,
        );
        tokio::select! {
            outcome = self.scenario(frontend) => outcome,
            ended = endpoints => ended.and_then(|()| bail!("the endpoints were not followed to the end")),
            ended = pods => ended.and_then(|()| bail!("the pods were not followed to the end")),
            ended = haproxy.ended() => bail!("HAProxy ended during the trial: {ended:?}"),
            () = self.listen(hear) => bail!("nobody watched the trial any more"),
        }
    }

    /// Asks for the removal of what was deployed, and doesn't wait for it.
    pub async fn clean_up(&self) -> Result<()> {
        self.rollout.remove().await
    }

    async fn scenario(&self, frontend: SocketAddr) -> Result<Outcome> {
        let replicas = self.settings.replicas;
        self.wait("the load balancer has all pods", ROLLOUT_PATIENCE, || {
            self.ledger().in_balancer() == replicas
        })
        .await?;
        let load = Load::start(&Plan {
            frontend,
            sources: (1..=4).map(|last| Ipv4Addr::new(127, 0, 1, last)).collect(),
            rate: self.settings.rate,
            patience: Duration::from_secs(5),
        });
        let reporting = async {
            loop {
                *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = load.so_far();
                sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            outcome = self.restart_under(&load) => outcome?,
            () = reporting => {}
        }
        let tally = load.finish().await;
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) =
            (tally.requests, tally.failed());
        Ok(self.outcome(tally))
    }

    async fn restart_under(&self, load: &Load) -> Result<()> {
        self.say(&format!("{} requests/s begin", self.settings.rate));
        sleep(BASELINE).await;
        let (requests, failed) = load.so_far();
        ensure!(
            failed == 0,
            "{failed} of {requests} requests failed before anything was restarted"
        );
        for restart in 1..=self.settings.restarts {
            self.say(&format!(
                "rollout restart {restart} of {}",
                self.settings.restarts
            ));
            self.rollout.restart().await?;
            let gone = restart * self.settings.replicas;
            self.wait(
                "the old pods are gone and out of the load balancer",
                GONE_PATIENCE,
                || {
                    let ledger = self.ledger();
                    ledger.gone() >= gone && ledger.still_in_balancer() == 0
                },
            )
            .await?;
            let deadline = Instant::now() + LOG_PATIENCE;
            while !self.ledger().without_sigterm().is_empty() && Instant::now() < deadline {
                sleep(Duration::from_millis(100)).await;
            }
            sleep(AFTERMATH).await;
            let (requests, failed) = load.so_far();
            self.say(&format!(
                "all old pods are gone; {failed} of {requests} requests failed so far"
            ));
        }
        let enough = Duration::from_secs(
            self.settings.min_requests / u64::from(self.settings.rate.max(1)) + 60,
        );
        self.wait("enough requests were sent", enough, || {
            load.so_far().0 >= self.settings.min_requests
        })
        .await
    }

    fn outcome(&self, tally: Tally) -> Outcome {
        let ledger = self.ledger();
        let mut doubts = Vec::new();
        let expected = self.settings.restarts * self.settings.replicas;
        if ledger.terminations() != expected {
            doubts.push(format!(
                "{} pods were deleted rather than {expected}.",
                ledger.terminations()
            ));
        }
        let silent = ledger.without_sigterm();
        if !silent.is_empty() {
            doubts.push(format!("no SIGTERM was recorded by {}.", silent.join(", ")));
        }
        if tally.unsent > 0 {
            doubts.push(format!("{} requests were due but not sent.", tally.unsent));
        }
        if tally.lateness_p99() > LATENESS_LIMIT_SECONDS {
            doubts.push(format!(
                "requests left up to {:.2} s late (p99).",
                tally.lateness_p99()
            ));
        }
        let row = Row {
            variant: self.variant,
            requests: tally.requests,
            failed: tally.failed(),
            terminations: ledger.terminations(),
            hold_seconds_p50: median(&ledger.holds()),
            waste_seconds_p50: median(&ledger.wastes()),
        };
        Outcome {
            row,
            lateness_p99_seconds: tally.lateness_p99(),
            failures: tally.failures,
            doubts,
        }
    }

    async fn listen(&self, mut hear: UnboundedReceiver<Seen>) {
        while let Some(seen) = hear.recv().await {
            let line = self.ledger().note(seen);
            if let Some(line) = line {
                self.say(&line);
            }
        }
    }

    async fn wait(&self, what: &str, patience: Duration, is_so: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !is_so() {
            ensure!(
                Instant::now() < deadline,
                "failed to see within {} s that {what}",
                patience.as_secs()
            );
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, line: &str) {
        self.story.tell(self.variant.name(), line);
    }
}

/// A port that was free a moment ago; `HAProxy` can't say which it chose itself.
fn free_port() -> Result<SocketAddr> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to find a free port")?;
    Ok(listener.local_addr()?)
}
