//! Runs batches: the cells of each at once, two lanes of them side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use tokio::sync::{Mutex, RwLock};
use tokio::time::timeout;

use super::cell::Cell;
use super::plan::{Batch, is_alone};
use super::report::{Row, write};
use super::trial::{Progress, Settings, Trial};

/// Requests per second of one lane. There are two.
const LANE_RATE: f64 = 200.0;
/// Requests per second to one Deployment at most.
const CELL_RATE: f64 = 50.0;
/// Longest time for asking for a run's removal.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// All batches, and the rows so far.
#[expect(missing_debug_implementations, reason = "a Kubernetes client has none")]
pub struct Lab {
    settings: Settings,
    lanes: Vec<Vec<Batch>>,
    report: PathBuf,
    rows: Mutex<Vec<Row>>,
    /// What runs now: requests so far, and those among them that brought no answer.
    running: StdMutex<BTreeMap<Cell, Progress>>,
    /// Held for reading by every batch, and for writing by one that runs alone.
    account: RwLock<()>,
}

impl Lab {
    /// The batches of `lanes`, without the cells of rows that an earlier run left. Those rows stay.
    pub fn new(
        settings: Settings,
        mut lanes: Vec<Vec<Batch>>,
        report: &Path,
        earlier: Vec<Row>,
    ) -> Self {
        let done: BTreeSet<_> = earlier.iter().map(Row::cell).collect();
        for batches in &mut lanes {
            for batch in &mut *batches {
                batch.cells.retain(|cell| !done.contains(cell));
            }
            batches.retain(|batch| !batch.cells.is_empty());
        }
        Self {
            settings,
            lanes,
            running: StdMutex::default(),
            report: report.to_owned(),
            rows: Mutex::new(earlier),
            account: RwLock::new(()),
        }
    }

    /// Cells that are still to run.
    pub fn cells(&self) -> usize {
        let batches = self.lanes.iter().flatten();
        batches.map(|batch| batch.cells.len()).sum()
    }

    /// Runs them all and answers with all rows. A run that breaks before it ended a pod is told and leaves no row.
    pub async fn run(&self) -> Result<Vec<Row>> {
        for outcome in join_all(self.lanes.iter().map(|batches| self.run_lane(batches))).await {
            outcome?;
        }
        Ok(self.rows.lock().await.clone())
    }

    /// Tells how far the runs of now are.
    pub fn tell_progress(&self) {
        let running = self.running();
        let counts = running.iter().map(|(cell, progress)| {
            let (requests, missed) = *progress.borrow();
            format!("{cell} {missed} of {requests}")
        });
        let counts: Vec<_> = counts.collect();
        if !counts.is_empty() {
            self.tell(&format!("unanswered: {}", counts.join(" | ")));
        }
    }

    async fn run_lane(&self, batches: &[Batch]) -> Result<()> {
        for (number, batch) in (1..).zip(batches) {
            let alone = batch.cells.iter().any(|cell| is_alone(cell.balancer));
            let rows = if alone {
                let _account = self.account.write().await;
                self.run_batch(batch).await
            } else {
                let _account = self.account.read().await;
                self.run_batch(batch).await
            };
            let mut all = self.rows.lock().await;
            all.extend(rows);
            write(&self.report, &all)?;
            let of = batches.len();
            self.tell(&format!(
                "batch {number} of {of} of this lane is over; {} rows",
                all.len()
            ));
        }
        Ok(())
    }

    async fn run_batch(&self, batch: &Batch) -> Vec<Row> {
        let names: Vec<_> = batch.cells.iter().map(Cell::to_string).collect();
        self.tell(&format!("begins: {}", names.join(", ")));
        let cells = u32::try_from(batch.cells.len()).unwrap_or(u32::MAX);
        let rate = (LANE_RATE / f64::from(cells)).min(CELL_RATE);
        let runs = batch.cells.iter().map(|cell| self.run_cell(*cell, rate));
        join_all(runs).await.into_iter().flatten().collect()
    }

    async fn run_cell(&self, cell: Cell, rate: f64) -> Option<Row> {
        let trial = Trial::new(self.settings.clone(), cell, rate);
        self.running().insert(cell, trial.progress());
        let outcome = Box::pin(trial.run()).await;
        self.running().remove(&cell);
        let removal = timeout(REMOVAL_PATIENCE, trial.clean_up()).await;
        if let Ok(Err(error)) = removal {
            self.settings
                .story
                .tell(&cell.to_string(), &format!("{error:#}"));
        }
        match outcome {
            Ok(row) => {
                for objection in row.objections() {
                    self.settings.story.tell(&cell.to_string(), &objection);
                }
                Some(row)
            }
            Err(error) => {
                let line = format!("this run could not be made: {error:#}");
                self.settings.story.tell(&cell.to_string(), &line);
                None
            }
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<Cell, Progress>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, line: &str) {
        self.settings.story.tell("lab", line);
    }
}
