//! The status annotation: what was done to a pod, for its owner (a Deployment's user sees no admission warnings).
//!
//! Never read back: annotations get copied from pod to pod.

use serde::Serialize;

use super::Reason;
use super::plan::Plan;
use super::waits::for_people;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    version: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    skipped_containers: Vec<SkippedContainer<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<WaitsStatus<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

#[derive(Debug, Serialize)]
struct SkippedContainer<'a> {
    name: &'a str,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitsStatus<'a> {
    original_grace: String,
    max_wait: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_because: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_hold: Option<String>,
    fallback_wait: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet: Option<String>,
}

/// Status of a gated pod.
pub(super) fn injected(plan: &Plan<'_>, version: &str) -> String {
    let waits = &plan.waits;
    Status {
        outcome: "injected",
        reason: None,
        version,
        containers: plan
            .gated
            .iter()
            .map(|gated| &*gated.container.name)
            .collect(),
        skipped_containers: plan
            .left_alone
            .iter()
            .map(|(name, reason)| SkippedContainer { name, reason })
            .collect(),
        waits: Some(WaitsStatus {
            original_grace: for_people(waits.original_grace),
            max_wait: for_people(waits.max_wait),
            max_wait_because: plan.max_wait_because.as_deref(),
            min_hold: Some(waits.min_hold)
                .filter(|min_hold| !min_hold.is_zero())
                .map(for_people),
            fallback_wait: for_people(waits.fallback_wait),
            settle: waits.settle.map(for_people),
            quiet: waits.quiet.map(for_people),
        }),
        warnings: &plan.warnings,
    }
    .into_json()
}

/// Status of a pod that was left as it was.
pub(super) fn skipped(reason: Reason, warnings: &[String], version: &str) -> String {
    Status {
        outcome: "skipped",
        reason: Some(reason.as_str()),
        version,
        containers: Vec::new(),
        skipped_containers: Vec::new(),
        waits: None,
        warnings,
    }
    .into_json()
}

impl Status<'_> {
    fn into_json(self) -> String {
        serde_json::to_string(&self).expect("strings must serialise into memory")
    }
}
