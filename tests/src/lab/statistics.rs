//! Percentiles.

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
    percentile(values, 0.5).map(hundredth)
}

/// The largest, to the hundredth.
pub fn largest(values: &[f64]) -> Option<f64> {
    percentile(values, 1.0).map(hundredth)
}

fn hundredth(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Seconds from `from` to `to`, both in milliseconds, negative if `to` is earlier.
pub fn seconds_between(from: u64, to: u64) -> f64 {
    let milliseconds =
        i64::try_from(to).unwrap_or(i64::MAX) - i64::try_from(from).unwrap_or(i64::MAX);
    #[expect(
        clippy::cast_precision_loss,
        reason = "differences of minutes are exact in a double"
    )]
    let seconds = milliseconds as f64 / 1000.0;
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(percentile(&values, 0.5), Some(2.0));
        assert_eq!(percentile(&values, 0.99), Some(4.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(median(&[1.2345]), Some(1.23));
        assert_eq!(largest(&values), Some(4.0));
    }

    #[test]
    fn seconds_may_be_negative() {
        assert!((seconds_between(2_500, 1_000) + 1.5).abs() < 1e-9);
    }
}
