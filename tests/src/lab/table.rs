//! The report as a table for people.

use std::fmt::Write;

use super::cell::Drawn;
use super::report::Row;
use super::variant::Variant;

/// What the table's words mean.
pub const LEGEND: &str = "\
failed: no whole answer with status 200. cut: flows that the load balancer itself left open, ended by SIGTERM.
held: from deletion to SIGTERM. waste: from the last request (NLB: new connection) that the load balancer sent to a pod
to its SIGTERM. calls: the confirmer's, about the row's target groups. over: holds longer than their bound.
drawn: whether the load balancer's lags lie within the gate's settle times or one source's beyond.";

const HEAD: &str = "load balancer  variant    traffic     seed  drawn   requests  failed    cut  pods  held s p50/max  waste s p50/max  calls  over  reasons, failures\n";

/// One line a row.
pub fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let pair = |median: Option<f64>, most: Option<f64>| match (median, most) {
            (Some(median), Some(most)) => format!("{median:.1}/{most:.1}"),
            _ => "?".to_owned(),
        };
        let drawn = match row.drawn {
            Drawn::Within => "within",
            Drawn::Beyond => "beyond",
        };
        let counts = row.reasons.iter().chain(&row.failures);
        let words: Vec<_> = counts
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        let line = format!(
            "{:<13}  {:<9}  {:<10}  {:>4}  {drawn}  {:>8}  {:>6}  {:>5}  {:>4}  {:>14}  {:>15}  {:>5}  {:>4}  {}",
            row.load_balancer.name(),
            row.variant.name(),
            row.traffic.name(),
            row.seed,
            row.requests,
            row.failed,
            row.flows_cut,
            row.terminations,
            pair(row.hold_seconds_p50, row.hold_seconds_max),
            pair(row.waste_seconds_p50, row.waste_seconds_max),
            row.api_calls,
            row.over_bound,
            words.join(", "),
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// What the rows amount to.
pub fn summary(rows: &[Row]) -> String {
    let gate = |drawn| {
        let rows = rows.iter();
        rows.filter(move |row| row.variant == Variant::Gate && row.drawn == drawn)
    };
    let line = |drawn, word: &str| {
        let count = gate(drawn).count();
        let terminations: usize = gate(drawn).map(|row| row.terminations).sum();
        let requests: u64 = gate(drawn).map(|row| row.requests).sum();
        let failed: u64 = gate(drawn).map(|row| row.failed).sum();
        format!(
            "Gate, lags {word} the settle times: {count} rows, {terminations} terminations, {requests} requests, {failed} failed."
        )
    };
    let most = |late: fn(&Row) -> f64| rows.iter().map(late).fold(0.0, f64::max) * 1000.0;
    format!(
        "{}\n{}\n99 of 100 requests left at most {:.0} ms later than planned, within 5 s of a SIGTERM all at most {:.0} ms.",
        line(Drawn::Within, "within"),
        line(Drawn::Beyond, "beyond"),
        most(|row| row.lateness_p99_seconds),
        most(|row| row.lateness_at_sigterm_max_seconds)
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::mk_row;
    use super::*;

    #[test]
    fn table_shows_unknown_values_as_unknown() {
        let text = table(&[mk_row(Variant::None, 12)]);
        let line = text.lines().nth(1).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "alb",
                "none",
                "short",
                "1",
                "within",
                "1000",
                "12",
                "0",
                "3",
                "30.0/31.5",
                "?",
                "7",
                "0",
                "3",
                "confirmed,",
                "12",
                "503"
            ]
        );
    }

    #[test]
    fn columns_are_under_their_heads() {
        let text = table(&[mk_row(Variant::Gate, 0)]);
        let lines: Vec<_> = text.lines().collect();
        for word in ["variant", "traffic", "drawn", "reasons"] {
            let column = lines[0].find(word).unwrap();
            assert_eq!(lines[1].as_bytes()[column - 1], b' ', "{word}");
            assert_ne!(lines[1].as_bytes()[column], b' ', "{word}");
        }
    }

    #[test]
    fn summary_tells_gate_rows_within_from_those_beyond() {
        let beyond = Row {
            drawn: Drawn::Beyond,
            ..mk_row(Variant::Gate, 2)
        };
        let text = summary(&[mk_row(Variant::Gate, 0), beyond, mk_row(Variant::None, 9)]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("1 rows, 3 terminations, 1000 requests, 0 failed."));
        assert!(lines[1].ends_with("1 rows, 3 terminations, 1000 requests, 2 failed."));
        assert!(lines[2].contains("10 ms") && lines[2].contains("250 ms"));
    }
}
