//! One cell of the lab's matrix: what is run, and with which seed.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::balancer::Balancer;
use super::traffic::Traffic;
use super::variant::Variant;

/// How the load balancer's lags lie to the gate's settle times.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Drawn {
    /// All within them: no request may fail.
    Within,
    /// One source of each group beyond them: what happens then is reported as it is.
    Beyond,
}

/// What ends pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// `kubectl rollout restart`.
    Rollout,
    /// Half of the replicas are taken away at once.
    ScaleIn,
    /// The eviction API, pod after pod, as `kubectl drain` uses it.
    Eviction,
    /// `kubectl delete pod`, pod after pod.
    Delete,
}

/// What one run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cell {
    /// The load balancer.
    pub balancer: Balancer,
    /// What delays SIGTERM.
    pub variant: Variant,
    /// The traffic.
    pub traffic: Traffic,
    /// What lags and clients are drawn from, and what operation and app rotate with.
    pub seed: u64,
    /// How far lags reach.
    pub drawn: Drawn,
}

impl Cell {
    /// What ends pods. Behind the gate it rotates with the seed, and begins elsewhere for each load balancer, so that
    /// every operation meets both kinds of app. What the gate is compared with is rolled out.
    pub fn operation(self) -> Operation {
        if self.variant != Variant::Gate {
            return Operation::Rollout;
        }
        match (self.seed + self.balancer as u64) % 4 {
            0 => Operation::Rollout,
            1 => Operation::ScaleIn,
            2 => Operation::Eviction,
            _ => Operation::Delete,
        }
    }

    /// Whether the app finishes at SIGTERM what it began; it ends at once otherwise.
    pub fn drains(self) -> bool {
        self.seed.is_multiple_of(2)
    }
}

impl fmt::Display for Cell {
    /// Usable as a namespace's name.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (balancer, variant) = (self.balancer.name(), self.variant.name());
        let tail = if self.drawn == Drawn::Beyond {
            "-beyond"
        } else {
            ""
        };
        write!(
            formatter,
            "{balancer}-{variant}-{}-{}{tail}",
            self.traffic.name(),
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn mk_cell(balancer: Balancer, seed: u64) -> Cell {
        Cell {
            balancer,
            variant: Variant::Gate,
            traffic: Traffic::KeepAlive,
            seed,
            drawn: Drawn::Within,
        }
    }

    #[test]
    fn four_seeds_bring_every_operation_and_all_balancers_every_pair() {
        let mut pairs = BTreeSet::new();
        for balancer in Balancer::value_variants() {
            let operations: BTreeSet<_> = (1..=4)
                .map(|seed| format!("{:?}", mk_cell(*balancer, seed).operation()))
                .collect();
            assert_eq!(operations.len(), 4);
            for seed in 1..=4 {
                let cell = mk_cell(*balancer, seed);
                pairs.insert((format!("{:?}", cell.operation()), cell.drains()));
            }
        }
        assert_eq!(pairs.len(), 8);
    }

    #[test]
    fn name_fits_a_namespace() {
        let cell = Cell {
            balancer: Balancer::AlbThrottled,
            variant: Variant::NoSettle,
            drawn: Drawn::Beyond,
            ..mk_cell(Balancer::Alb, 4)
        };
        assert_eq!(
            cell.to_string(),
            "alb-throttled-no-settle-keep-alive-4-beyond"
        );
        assert!("lab-".len() + cell.to_string().len() <= 63);
    }
}
