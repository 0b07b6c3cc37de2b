//! What came of runs: rows, the report file and the verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sidecar::contract::ReleaseReason;

use super::balancer::Balancer;
use super::cell::{Cell, Drawn, Operation};
use super::released::NO_EVENT;
use super::traffic::Traffic;
use super::variant::Variant;

/// A load that left later than this was not the one that was planned.
const LATENESS_LIMIT_SECONDS: f64 = 1.0;
/// Around a SIGTERM not one request may: a gap there hides just what is looked for.
const LATENESS_AT_SIGTERM_LIMIT_SECONDS: f64 = 1.5;
/// A sleep that is so much shorter than every lag ends pods that all sources still send to.
const SLEEP_MARGIN_SECONDS: f64 = 1.0;

/// One row; the report file is an array of these.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which images ran; unknown in reports of old.
    #[serde(default)]
    pub build: String,
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
    /// And any of them that was due or left around a SIGTERM.
    #[serde(default)]
    pub lateness_at_sigterm_max_seconds: f64,
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
        let late = self.lateness_at_sigterm_max_seconds;
        object(
            late > LATENESS_AT_SIGTERM_LIMIT_SECONDS,
            format!("a request around a SIGTERM left {late:.2} s late."),
        );
        let failed = self.failed;
        match self.variant {
            Variant::Gate => {
                let (over, unexplained) = (self.over_bound, self.unexplained);
                object(
                    failed > 0 && self.drawn == Drawn::Within,
                    format!("{failed} requests failed, where none may."),
                );
                for (reason, count) in &self.reasons {
                    object(
                        !self.may_be_released_as(reason),
                        format!("{count} pods were released as {reason}."),
                    );
                }
                object(
                    over > 0,
                    format!("{over} holds were longer than their bound."),
                );
                object(
                    unexplained > 0,
                    format!("{unexplained} holds ended at max-wait without a reason."),
                );
            }
            Variant::None
            | Variant::Sleep5s
            | Variant::Sleep15s
            | Variant::Sleep30s
            | Variant::NoSettle => object(
                failed == 0 && self.must_fail(),
                "no request failed, so this run could not have shown a failure.".to_owned(),
            ),
        }
        objections
    }

    /// Whether the gate may give `reason`: proof, but for what the row is about. That no Event was seen is a doubt.
    fn may_be_released_as(&self, reason: &str) -> bool {
        let is = |expected: ReleaseReason| reason == expected.as_str();
        is(ReleaseReason::Confirmed)
            || is(ReleaseReason::Settled) && self.load_balancer == Balancer::AlbThrottled
            || is(ReleaseReason::MaxWait) && self.drawn == Drawn::Beyond
            || reason == NO_EVENT
    }

    /// Whether pods end while every source still sends to them.
    fn must_fail(&self) -> bool {
        let lags = self.lag_seconds.iter().flatten().copied();
        let shortest = lags.fold(f64::INFINITY, f64::min);
        let is_short = match self.variant {
            Variant::Gate => false,
            // A lag of 5 s at least is more than these wait after the deregistration.
            Variant::None | Variant::Sleep5s | Variant::NoSettle => true,
            Variant::Sleep15s | Variant::Sleep30s => {
                let sleep = self.variant.sleep().unwrap_or_default().as_secs_f64();
                sleep + SLEEP_MARGIN_SECONDS < shortest
            }
        };
        is_short && self.traffic != Traffic::Slow
    }
}

/// Why the runs didn't show what they were to show, a sentence each. Rows of an earlier run are judged too.
pub fn objections(rows: &[Row], planned: &BTreeSet<Cell>) -> Vec<String> {
    let there: BTreeSet<_> = rows.iter().map(Row::cell).collect();
    let missing = planned.difference(&there);
    let missing = missing.map(|cell| format!("{cell}: there is no row of it."));
    let judged = rows.iter().flat_map(|row| {
        let cell = row.cell();
        let objections = row.objections().into_iter();
        objections.map(move |objection| format!("{cell}: {objection}"))
    });
    judged.chain(missing).collect()
}

/// The rows that an earlier run of `build` left; those of another prove nothing about it, and are an error.
pub fn read_earlier(path: &Path, build: &str) -> Result<Vec<Row>> {
    let rows = read(path)?;
    if let Some(other) = rows.iter().find(|row| row.build != build) {
        let (path, cell) = (path.display(), other.cell());
        bail!("{path} has rows of another build, as that of {cell}; run without --resume");
    }
    Ok(rows)
}

/// The rows that an earlier run left; none where there is no file.
fn read(path: &Path) -> Result<Vec<Row>> {
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
