//! How late each source of a load balancer obeys its own control plane: drawn per source and run, from the seed alone.
//!
//! Pure. The same seed gives the same lags, whichever variant runs behind them, so that variants can be compared.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::balancer::{Balancer, Layer};
use super::cell::{Cell, Drawn};

/// Sources of each target group: an ALB has a node in each zone at least, an NLB too.
pub const SOURCES: usize = 3;

/// The lags of one target group's sources.
pub type Lags = [Duration; SOURCES];

/// Seconds within the gate's settle times: users saw 17 s on an ALB (aws-load-balancer-controller#2366) and 120–180 s
/// on an NLB (#1834, containers-roadmap#470).
fn within(balancer: Balancer) -> RangeInclusive<u64> {
    match balancer.layer() {
        Layer::Requests => 5..=20,
        Layer::Connections => 60..=180,
    }
}

/// Seconds beyond them, to the longest that users and AWS's support named.
fn beyond(balancer: Balancer) -> RangeInclusive<u64> {
    match balancer.layer() {
        Layer::Requests => 21..=45,
        Layer::Connections => 181..=300,
    }
}

/// The lags of `cell`'s target group number `group`.
pub fn lags(cell: Cell, group: usize) -> Lags {
    let mut random = random(cell, &format!("lags of group {group}"));
    let tail = random.usize(..SOURCES);
    std::array::from_fn(|source| {
        let range = if cell.drawn == Drawn::Beyond && source == tail {
            beyond(cell.balancer)
        } else {
            within(cell.balancer)
        };
        Duration::from_millis(random.u64(range.start() * 1000..=range.end() * 1000))
    })
}

/// Chance for one `purpose` of a run, independent of the variant.
pub fn random(cell: Cell, purpose: &str) -> fastrand::Rng {
    let Cell {
        balancer,
        traffic,
        seed,
        drawn,
        variant: _,
    } = cell;
    let text = format!(
        "{seed} {} {} {drawn:?} {purpose}",
        balancer.name(),
        traffic.name()
    );
    // FNV-1a: the standard library's own hash may change from release to release, and with it every run.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    fastrand::Rng::with_seed(hash)
}

#[cfg(test)]
mod tests {
    use super::super::traffic::Traffic;
    use super::super::variant::Variant;
    use super::*;

    fn mk_cell(balancer: Balancer, seed: u64, drawn: Drawn) -> Cell {
        Cell {
            balancer,
            variant: Variant::Gate,
            traffic: Traffic::Short,
            seed,
            drawn,
        }
    }

    fn all(balancer: Balancer, drawn: Drawn) -> Vec<Lags> {
        (0..500)
            .map(|seed| lags(mk_cell(balancer, seed, drawn), 0))
            .collect()
    }

    #[test]
    fn lags_within_the_settle_times_span_their_range() {
        for (balancer, least, most) in [(Balancer::Alb, 5, 20), (Balancer::Nlb, 60, 180)] {
            let seconds: Vec<_> = all(balancer, Drawn::Within)
                .concat()
                .iter()
                .map(Duration::as_secs)
                .collect();
            assert!(seconds.iter().all(|lag| (least..=most).contains(lag)));
            assert!(seconds.iter().any(|lag| *lag < least + 2));
            assert!(seconds.iter().any(|lag| *lag > most - 3));
            assert!(Duration::from_secs(most) <= balancer.settle());
        }
    }

    #[test]
    fn beyond_exactly_one_source_is_later_than_the_settle_time() {
        for (balancer, most) in [(Balancer::Alb, 45), (Balancer::Nlb, 300)] {
            for lags in all(balancer, Drawn::Beyond) {
                let late: Vec<_> = lags
                    .iter()
                    .filter(|lag| **lag > balancer.settle())
                    .collect();
                assert_eq!(late.len(), 1, "{lags:?}");
                assert!(late[0] <= &Duration::from_secs(most));
            }
        }
    }

    #[test]
    fn same_seed_gives_the_same_lags_and_another_seed_group_or_traffic_others() {
        let cell = mk_cell(Balancer::TwoGroups, 7, Drawn::Within);
        assert_eq!(lags(cell, 0), lags(cell, 0));
        let other_variant = Cell {
            variant: Variant::NoSettle,
            ..cell
        };
        assert_eq!(lags(cell, 0), lags(other_variant, 0));
        assert_ne!(lags(cell, 0), lags(cell, 1));
        assert_ne!(lags(cell, 0), lags(Cell { seed: 8, ..cell }, 0));
        let other_traffic = Cell {
            traffic: Traffic::Slow,
            ..cell
        };
        assert_ne!(lags(cell, 0), lags(other_traffic, 0));
    }
}
