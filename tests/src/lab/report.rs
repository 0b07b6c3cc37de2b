//! What came of a trial: the row, the table, the report file and the verdict.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use super::failure::Failure;
use super::variant::Variant;

/// One row of the report. `target/demo/report.json` is an array of these.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What stood between deletion and SIGTERM.
    pub variant: Variant,
    /// Requests sent.
    pub requests: u64,
    /// Requests without a whole answer of 200.
    pub failed: u64,
    /// Pods deleted under load.
    pub terminations: usize,
    /// Median seconds from deletion to SIGTERM.
    pub hold_seconds_p50: Option<f64>,
    /// Median seconds from the last request that reached a pod to its SIGTERM.
    pub waste_seconds_p50: Option<f64>,
}

/// A row with what doesn't go into the report.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The row.
    pub row: Row,
    /// Failed requests by kind.
    pub failures: BTreeMap<Failure, u64>,
    /// Seconds by which 99 of 100 requests left late at most.
    pub lateness_p99_seconds: f64,
    /// What makes the row less than a proof, one sentence each.
    pub doubts: Vec<String>,
}

/// The value below which `share` of `values` lie, by nearest rank; nothing without values.
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank lies between 1 and the number of values"
    )]
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied()
}

/// The median, to the hundredth.
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 0.5).map(|value| (value * 100.0).round() / 100.0)
}

/// The table that ends the demo.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "variant       requests  failed  pods  held s (p50)  waste s (p50)  how requests failed\n",
    );
    for Outcome { row, failures, .. } in outcomes {
        let seconds = |value: Option<f64>| {
            value.map_or_else(|| "?".to_owned(), |value| format!("{value:.1}"))
        };
        let kinds: Vec<_> = failures
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        let line = format!(
            "{:<12}  {:>8}  {:>6}  {:>4}  {:>12}  {:>13}  {}",
            row.variant.name(),
            row.requests,
            row.failed,
            row.terminations,
            seconds(row.hold_seconds_p50),
            seconds(row.waste_seconds_p50),
            kinds.join(", "),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Whether the demonstration showed what it is to show; if not, why, one sentence each.
pub fn verdict(outcomes: &[Outcome]) -> Vec<String> {
    let mut reasons = Vec::new();
    for outcome in outcomes {
        let Row {
            variant, failed, ..
        } = outcome.row;
        let name = variant.name();
        match variant {
            Variant::Gate if failed > 0 => {
                reasons.push(format!(
                    "{failed} requests failed behind the gate, where none may."
                ));
            }
            Variant::None | Variant::Sleep5s | Variant::ShortSettle if failed == 0 => {
                reasons.push(format!("No request failed under \"{name}\", so this run could not have shown a failure."));
            }
            Variant::None | Variant::Sleep5s | Variant::ShortSettle | Variant::Gate => {}
        }
        reasons.extend(
            outcome
                .doubts
                .iter()
                .map(|doubt| format!("Under \"{name}\": {doubt}")),
        );
    }
    reasons
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_outcome(variant: Variant, failed: u64) -> Outcome {
        let row = Row {
            variant,
            requests: 10_000,
            failed,
            terminations: 6,
            hold_seconds_p50: Some(20.04),
            waste_seconds_p50: None,
        };
        let failures = if failed > 0 {
            [(Failure::Status(503), failed)].into()
        } else {
            BTreeMap::new()
        };
        Outcome {
            row,
            failures,
            lateness_p99_seconds: 0.0,
            doubts: Vec::new(),
        }
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&values, 0.5), Some(2.0));
        assert_eq!(percentile(&values, 0.99), Some(4.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(median(&[1.2345]), Some(1.23));
    }

    #[test]
    fn report_has_the_agreed_keys() {
        let expected = json!({
            "variant": "sleep-5s", "requests": 10_000, "failed": 3, "terminations": 6,
            "hold_seconds_p50": 20.04, "waste_seconds_p50": null,
        });
        assert_eq!(
            serde_json::to_value(mk_outcome(Variant::Sleep5s, 3).row).unwrap(),
            expected
        );
    }

    #[test]
    fn table_shows_unknown_values_as_unknown() {
        let text = table(&[mk_outcome(Variant::None, 12), mk_outcome(Variant::Gate, 0)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[1],
            "none             10000      12     6          20.0              ?  12 503"
        );
        assert_eq!(
            lines[2],
            "gate             10000       0     6          20.0              ?"
        );
    }

    #[test]
    fn verdict_needs_failures_where_they_must_be_and_none_behind_the_gate() {
        let run = |none, short, gate| {
            verdict(&[
                mk_outcome(Variant::None, none),
                mk_outcome(Variant::Sleep5s, 7),
                mk_outcome(Variant::ShortSettle, short),
                mk_outcome(Variant::Gate, gate),
            ])
        };
        assert!(run(5, 5, 0).is_empty());
        assert_eq!(
            run(5, 5, 1),
            ["1 requests failed behind the gate, where none may."]
        );
        assert_eq!(run(0, 5, 0).len(), 1);
        assert_eq!(run(5, 0, 0).len(), 1);
    }

    #[test]
    fn doubt_about_a_row_spoils_the_verdict() {
        let mut outcome = mk_outcome(Variant::Gate, 0);
        outcome.doubts.push("the load was late.".to_owned());
        assert_eq!(verdict(&[outcome]), ["Under \"gate\": the load was late."]);
    }
}
