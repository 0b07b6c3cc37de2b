//! One run: deploy a cell, load it through the load balancer, end pods, count.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use futures::future::try_join_all;
use kube::Client;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::account::Account;
use super::cell::{Cell, Operation};
use super::clients::{Doors, clients};
use super::dataplane::DataPlane;
use super::draw::{Lags, SOURCES, lags};
use super::ledger::Ledger;
use super::load::Load;
use super::outcome::Observed;
use super::released::Released;
use super::report::Row;
use super::seen::Seen;
use super::site::{PATIENCE as ROLLOUT_PATIENCE, Site};
use super::story::Story;
use super::tally::Tally;
use super::workload::{ENDED, PORT, replicas_before};
use super::{pods, released, timeline};

/// Time without any change before the first pod is ended: no request may fail in it.
const BASELINE: Duration = Duration::from_secs(5);
/// Time under load after the last pod is out of the load balancer.
const AFTERMATH: Duration = Duration::from_secs(3);
/// Longest time for deleted pods to be gone and out of the load balancer: the longest hold or lag (300 s), and more.
const GONE_PATIENCE: Duration = Duration::from_mins(7);
/// A pod's last words and the Event of its release may come after its end; more than this is not waited for.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(5);

/// Requests so far, and those among them that brought no answer.
pub type Progress = watch::Receiver<(u64, u64)>;

/// What all runs have in common.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Settings {
    /// The cluster.
    pub client: Client,
    /// The app's image.
    pub image: String,
    /// The AWS account.
    pub account: Arc<Account>,
    /// Where pictures go.
    pub pictures: PathBuf,
    /// Which images run, see [`images::digest`](crate::images::digest).
    pub build: String,
    /// Where what happens is told.
    pub story: Story,
}

/// One cell under load.
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Trial {
    settings: Settings,
    site: Site,
    cell: Cell,
    /// Requests per second.
    rate: f64,
    lags: Vec<Lags>,
    groups: Vec<String>,
    ledger: Arc<Mutex<Ledger>>,
    progress: watch::Sender<(u64, u64)>,
    /// Whether pods are being ended: what came of it must be told from now on, whatever breaks.
    begun: AtomicBool,
}

impl Trial {
    /// A run that is still to be made.
    pub fn new(settings: Settings, cell: Cell, rate: f64) -> Self {
        let account = &settings.account;
        let numbers = 0..cell.balancer.groups();
        Self {
            site: Site::new(settings.client.clone(), cell),
            cell,
            rate,
            lags: numbers.clone().map(|group| lags(cell, group)).collect(),
            groups: numbers
                .map(|group| account.create_group(cell, group))
                .collect(),
            ledger: Arc::default(),
            progress: watch::Sender::default(),
            begun: AtomicBool::new(false),
            settings,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress.subscribe()
    }

    /// Runs it. Everything that it started outside the cluster ends with the future. A run that breaks once pods are
    /// being ended has a row all the same, with what broke as a doubt: to run it again until it is good would be no test.
    pub async fn run(&self) -> Result<Row> {
        let (tell, hear) = unbounded_channel();
        let mut planes = Vec::new();
        for (group, (arn, lags)) in self.groups.iter().zip(&self.lags).enumerate() {
            let changes = self.settings.account.subscribe(arn);
            let layer = self.cell.balancer.layer();
            planes.push(DataPlane::start(layer, group, *lags, changes).await?);
        }
        let frontends = planes.iter().flat_map(DataPlane::frontends).copied();
        let frontends: Vec<_> = frontends.collect();
        let planes = try_join_all(planes.into_iter().map(|plane| plane.run(tell.clone())));
        let namespace = self.site.namespace().to_owned();
        let pods = pods::follow(self.settings.client.clone(), namespace, tell.clone());
        let company = async {
            let ended: Result<()> = tokio::select! {
                ended = planes => ended.and_then(|_| bail!("the load balancer was not driven to the end")),
                ended = pods => ended.and_then(|()| bail!("the pods were not followed to the end")),
                () = self.listen(hear) => bail!("nobody watched the run any more"),
            };
            ended
        };
        // Fused: what goes on after it broke must not ask it again.
        let mut company = pin!(company.fuse());
        let load = tokio::select! {
            load = Box::pin(self.prepare(&frontends)) => load?,
            broken = &mut company => return broken.and_then(|()| bail!("the run was left alone")),
        };
        let throttled = self.settings.account.disturb(self.cell.balancer);
        let ended = tokio::select! {
            ended = self.end_pods_under(&load) => ended,
            broken = &mut company => broken,
        };
        let mut doubts = Vec::new();
        match ended {
            Err(error) if !self.begun.load(Ordering::Relaxed) => return Err(error),
            Err(error) => doubts.push(broke_off(&error)),
            Ok(()) => {}
        }
        let mut gathering = pin!(self.gather(load));
        let gathered = loop {
            tokio::select! {
                gathered = &mut gathering => break gathered,
                broken = &mut company => doubts.extend(broken.err().as_ref().map(broke_off)),
            }
        };
        drop(throttled);
        doubts.extend(gathered.doubts.iter().cloned());
        Ok(self.conclude(&gathered, doubts))
    }

    /// Asks for the removal of what was deployed, and doesn't wait for it.
    pub async fn clean_up(&self) -> Result<()> {
        self.site.remove().await
    }

    /// Deploys the cell and begins to load it.
    async fn prepare(&self, frontends: &[SocketAddr]) -> Result<Load> {
        let image = &self.settings.image;
        let service = self.site.deploy(image, &self.groups).await?;
        let replicas = replicas_before(self.cell.operation());
        let sources = self.groups.len() * SOURCES;
        self.wait("the load balancer has all pods", ROLLOUT_PATIENCE, || {
            self.ledger().targets(sources) == replicas
        })
        .await?;
        let lags: Vec<_> = self
            .lags
            .concat()
            .iter()
            .map(|lag| format!("{:.1}", lag.as_secs_f64()))
            .collect();
        let (rate, lags) = (self.rate, lags.join(", "));
        self.say(&format!(
            "{replicas} pods are ready; lags in seconds: {lags}; {rate:.0} requests/s at most begin"
        ));
        let doors = Doors {
            sources: frontends,
            lags: &self.lags,
            service,
        };
        let ledger = Arc::clone(&self.ledger);
        let addresses = move || {
            let addresses = lock(&ledger).addresses();
            addresses
                .into_iter()
                .map(|ip| SocketAddr::new(ip, PORT))
                .collect()
        };
        Ok(Load::start(
            clients(self.cell, &doors, self.rate),
            addresses,
        ))
    }

    async fn end_pods_under(&self, load: &Load) -> Result<()> {
        let reporting = async {
            loop {
                self.progress.send_replace(load.so_far());
                sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            outcome = self.end_pods(load) => outcome,
            () = reporting => Ok(()),
        }
    }

    async fn end_pods(&self, load: &Load) -> Result<()> {
        sleep(BASELINE).await;
        let (requests, missed) = load.so_far();
        ensure!(
            missed == 0,
            "{missed} of {requests} requests failed before any pod was ended"
        );
        self.say(match self.cell.operation() {
            Operation::Rollout => "rollout restart",
            Operation::ScaleIn => "scale-in",
            Operation::Eviction => "evictions",
            Operation::Delete => "deletions",
        });
        self.begun.store(true, Ordering::Relaxed);
        self.site.end_pods().await?;
        let what = "the ended pods are gone and out of the load balancer";
        self.wait(what, GONE_PATIENCE, || self.ledger().done() >= ENDED)
            .await?;
        sleep(AFTERMATH).await;
        let (requests, missed) = load.so_far();
        self.say(&format!(
            "all ended pods are gone; {missed} of {requests} requests were not answered"
        ));
        Ok(())
    }

    /// Ends the load, and reads what is told after the end.
    async fn gather(&self, load: Load) -> Gathered {
        let mut gathered = Gathered {
            tally: load.finish().await,
            ..Gathered::default()
        };
        let client = &self.settings.client;
        let deadline = Instant::now() + LAST_WORDS_PATIENCE;
        loop {
            let released = released::read(client, self.site.namespace()).await;
            let known = !self.cell.variant.is_gated()
                || matches!(&released, Ok(released) if released.len() >= ENDED);
            let complete = known && self.ledger().without_sigterm().is_empty();
            if complete || Instant::now() > deadline {
                match released {
                    Ok(released) => gathered.released = released,
                    Err(error) => gathered.doubts.push(broke_off(&error)),
                }
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        // Without them, bounds are counted as if nobody knew which replica was asked.
        gathered.replicas = released::replicas(client).await.unwrap_or_default();
        gathered
    }

    fn conclude(&self, gathered: &Gathered, doubts: Vec<String>) -> Row {
        let calls: Vec<_> = self
            .groups
            .iter()
            .map(|arn| self.settings.account.calls(arn))
            .collect();
        let ledger = self.ledger();
        let observed = Observed {
            cell: self.cell,
            build: &self.settings.build,
            lags: &self.lags,
            tally: &gathered.tally,
            ledger: &ledger,
            released: &gathered.released,
            replicas: &gathered.replicas,
            calls: &calls,
        };
        let mut row = observed.row();
        row.doubts.extend(doubts);
        let picture = self.settings.pictures.join(format!("{}.svg", self.cell));
        if let Err(error) = timeline::write(&picture, &observed) {
            let picture = picture.display();
            row.doubts
                .push(format!("failed to write {picture}: {error}."));
        }
        row
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
        let poll = async {
            while !is_so() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let seconds = patience.as_secs();
        timeout(patience, poll)
            .await
            .with_context(|| format!("failed to see within {seconds} s that {what}"))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    fn say(&self, line: &str) {
        self.settings.story.tell(&self.cell.to_string(), line);
    }
}

/// What is known once the load is over.
#[derive(Default)]
struct Gathered {
    tally: Tally,
    released: BTreeMap<String, Released>,
    replicas: BTreeMap<String, IpAddr>,
    doubts: Vec<String>,
}

/// The doubt that a row has of a run that broke.
fn broke_off(error: &anyhow::Error) -> String {
    format!("the run broke off: {error:#}.")
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
