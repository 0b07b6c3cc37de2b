//! Durations as annotations and flags spell them: Go's `time.ParseDuration` (`90s`, `1m30s`, `1.5h`), not negative.

use std::time::Duration;

/// More digits than any sensible wait has, few enough that no unit makes them overflow.
const MAX_DIGITS: usize = 9;

/// Reads a duration; `None` where it is negative or nonsense.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    // kube's parser multiplies with `Duration::mul_f64`, which panics on a sign inside the text and on overflow,
    // and it takes an empty text for zero. Annotations are anybody's input, so those never reach it.
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let starts_well = unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let digits_fit = unsigned
        .split(|c: char| !c.is_ascii_digit())
        .all(|digits| digits.len() <= MAX_DIGITS);
    if !starts_well || !digits_fit || unsigned.contains(['+', '-']) {
        return None;
    }
    unsigned
        .parse::<kube::core::Duration>()
        .ok()
        .map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_and_kubernetes_write_them() {
        for (text, seconds) in [
            ("0", 0.0),
            ("0s", 0.0),
            ("60s", 60.0),
            ("+60s", 60.0),
            ("1m30s", 90.0),
            ("1.5h", 5400.0),
            (".5s", 0.5),
            ("250ms", 0.25),
            ("2m0.5s", 120.5),
        ] {
            assert_eq!(
                parse(text),
                Some(Duration::from_secs_f64(seconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused_without_a_panic() {
        for text in [
            "",
            " ",
            "banana",
            "-5s",
            "--5s",
            "5s-3s",
            "5s+3s",
            "60",
            "s",
            "1e9s",
            "1.2.3s",
            "5 s",
            "5s ",
            "٥s",
            "infs",
            "NaNs",
            "1d",
            "99999999999999999999999999h",
            "5s\n",
            "{{5s}}",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        let _ = parse(&"999999999h".repeat(1000));
    }
}
