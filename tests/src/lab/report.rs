//! What came of runs: rows, the report file and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::balancer::Balancer;
use super::cell::{Cell, Drawn, Operation};
use super::traffic::Traffic;
use super::variant::Variant;

/// A load that left later than this was not the one that was planned.
const LATENESS_LIMIT_SECONDS: f64 = 1.0;

/// One row; the report file is an array of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The load balancer.
    pub load_balancer: Balancer,
    /// What stood between deletion and SIGTERM.
    pub variant: Variant,
    /// The traffic.
    pub traffic: Traffic,
    /// What was drawn from.
    pub seed: u64,
    /// Whether all lags lay within the settle times.
    pub drawn: Drawn,
    /// What ended pods.
    pub operation: Operation,
    /// Whether the app finished at SIGTERM what it had begun.
    pub drains: bool,
    /// Each target group's sources' lags in seconds.
    pub lag_seconds: Vec<Vec<f64>>,
    /// Requests sent.
    pub requests: u64,
    /// Failed ones, by the rule of [`verdict`](super::verdict).
    pub failed: u64,
    /// Flows that the load balancer left open, cut by SIGTERM.
    pub flows_cut: u64,
    /// Failed ones by kind.
    pub failures: BTreeMap<String, u64>,
    /// Pods deleted under load.
    pub terminations: usize,
    /// Seconds from deletion to SIGTERM: median.
    pub hold_seconds_p50: Option<f64>,
    /// And the longest.
    pub hold_seconds_max: Option<f64>,
    /// Seconds from what the load balancer sent last to SIGTERM: median.
    pub waste_seconds_p50: Option<f64>,
    /// And the longest.
    pub waste_seconds_max: Option<f64>,
    /// The confirmer's calls about the run's target groups.
    pub api_calls: usize,
    /// Pods by why they were released.
    pub reasons: BTreeMap<String, u64>,
    /// Holds that were longer than [`bound`](super::bound) allows.
    pub over_bound: u64,
    /// Holds that ended at max-wait without an explanation.
    pub unexplained: u64,
    /// Seconds by which 99 of 100 requests left late at most.
    pub lateness_p99_seconds: f64,
    /// What makes the row less than a proof, a sentence each.
    pub doubts: Vec<String>,
}

impl Row {
    /// The cell that it fills.
    pub fn cell(&self) -> Cell {
        Cell {
            balancer: self.load_balancer,
            variant: self.variant,
            traffic: self.traffic,
            seed: self.seed,
            drawn: self.drawn,
        }
    }

    /// Why it isn't what it is to be, a sentence each.
    pub fn objections(&self) -> Vec<String> {
        let mut objections = self.doubts.clone();
        let mut object = |is: bool, sentence: String| {
            if is {
                objections.push(sentence);
            }
        };
        let late = self.lateness_p99_seconds;
        object(
            late > LATENESS_LIMIT_SECONDS,
            format!("requests left up to {late:.2} s late (p99)."),
        );
        let failed = self.failed;
        match self.variant {
            Variant::Gate if self.drawn == Drawn::Within => {
                let (over, unexplained) = (self.over_bound, self.unexplained);
                object(
                    failed > 0,
                    format!("{failed} requests failed, where none may."),
                );
                object(
                    over > 0,
                    format!("{over} holds were longer than their bound."),
                );
                object(
                    unexplained > 0,
                    format!("{unexplained} holds ended at max-wait without a reason."),
                );
            }
            // A lag of 5 s at least is more than these wait after the deregistration.
            Variant::None | Variant::Sleep5s | Variant::NoSettle
                if self.traffic != Traffic::Slow =>
            {
                object(
                    failed == 0,
                    "no request failed, so this run could not have shown a failure.".to_owned(),
                );
            }
            Variant::None
            | Variant::Sleep5s
            | Variant::Sleep15s
            | Variant::Sleep30s
            | Variant::NoSettle
            | Variant::Gate => {}
        }
        objections
    }
}

/// Why the runs didn't show what they were to show, a sentence each.
pub fn objections(rows: &[Row], planned: &BTreeSet<Cell>) -> Vec<String> {
    let there: BTreeSet<_> = rows.iter().map(Row::cell).collect();
    let missing = planned.difference(&there);
    let missing = missing.map(|cell| format!("{cell}: there is no row of it."));
    let all = rows.iter().filter(|row| planned.contains(&row.cell()));
    all.flat_map(|row| {
        let cell = row.cell();
        let objections = row.objections().into_iter();
        objections.map(move |objection| format!("{cell}: {objection}"))
    })
    .chain(missing)
    .collect()
}

/// The rows that an earlier run left; none where there is no file.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("failed to read {}", path.display()))?,
    };
    serde_json::from_slice(&text).with_context(|| format!("failed to parse {}", path.display()))
}

/// Writes all rows. The file is never there in part: a run may be ended at any time.
pub fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string_pretty(rows).context("failed to put the report into words")?;
    let new = path.with_extension("new");
    fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new(".")))
        .and_then(|()| fs::write(&new, text + "\n"))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
pub(super) mod tests;
