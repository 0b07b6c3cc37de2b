//! Which cells are run, in which batches and order. Pure.
//!
//! A batch is one load balancer with several Deployments at once. There are two lanes of batches, one for each layer,
//! that run side by side: an NLB's lags are minutes of waiting, in which an ALB's batches have the machine. Throttled
//! batches run alone: the account's bucket is everybody's.

use clap::ValueEnum;

use super::balancer::{Balancer, Layer};
use super::cell::{Cell, Drawn};
use super::traffic::Traffic;
use super::variant::Variant;

/// What to run of the whole matrix.
#[derive(Debug, Clone)]
pub struct Filter {
    /// Load balancers.
    pub balancers: Vec<Balancer>,
    /// Variants.
    pub variants: Vec<Variant>,
    /// Seeds of the gate's rows; the first of them is that of all others.
    pub seeds: Vec<u64>,
    /// How far lags reach.
    pub drawn: Vec<Drawn>,
}

impl Filter {
    /// The batches of both lanes.
    pub fn lanes(&self) -> Vec<Vec<Batch>> {
        [Layer::Requests, Layer::Connections]
            .map(|layer| lane(layer, self))
            .into()
    }
}

/// Cells that run at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// What runs.
    pub cells: Vec<Cell>,
}

/// The batches of one lane, in order: the control first, since without it the rest shows nothing; then the gate, seed
/// by seed; then what it is compared with; then what no promise is made about.
fn lane(layer: Layer, filter: &Filter) -> Vec<Batch> {
    let balancers = filter.balancers.iter().copied();
    let balancers: Vec<_> = balancers
        .filter(|balancer| balancer.layer() == layer)
        .collect();
    let first = filter.seeds.first().copied().unwrap_or(1);
    let both = [Traffic::Short, Traffic::KeepAlive];
    let sleeps = [
        Variant::None,
        Variant::Sleep5s,
        Variant::Sleep15s,
        Variant::Sleep30s,
    ];
    let mut batches = Vec::new();
    let mut add = |balancer: Balancer, variants: &[Variant], traffic: &[Traffic], seed, drawn| {
        let variants = variants
            .iter()
            .filter(|variant| filter.variants.contains(variant));
        let cells: Vec<_> = variants
            .flat_map(|variant| traffic.iter().map(|traffic| (*variant, *traffic)))
            .map(|(variant, traffic)| Cell {
                balancer,
                variant,
                traffic,
                seed,
                drawn,
            })
            .collect();
        if !cells.is_empty() && filter.drawn.contains(&drawn) {
            batches.push(Batch { cells });
        }
    };
    let is_plain = |balancer: &&Balancer| matches!(balancer, Balancer::Alb | Balancer::Nlb);
    let all = Traffic::value_variants();
    for balancer in balancers.iter().filter(is_plain) {
        add(*balancer, &[Variant::NoSettle], &both, first, Drawn::Within);
    }
    for seed in &filter.seeds {
        for balancer in balancers.iter().filter(|balancer| !is_alone(**balancer)) {
            add(*balancer, &[Variant::Gate], all, *seed, Drawn::Within);
        }
    }
    for balancer in balancers.iter().filter(is_plain) {
        add(*balancer, &sleeps, &both, first, Drawn::Within);
        add(*balancer, &[Variant::Gate], all, first, Drawn::Beyond);
    }
    for seed in &filter.seeds {
        for balancer in balancers.iter().filter(|balancer| is_alone(**balancer)) {
            add(*balancer, &[Variant::Gate], all, *seed, Drawn::Within);
        }
    }
    batches
}

/// Whether nothing else may run meanwhile.
pub fn is_alone(balancer: Balancer) -> bool {
    balancer.foreign_calls_per_second() > 0.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::workload::{ENDED, replicas_before};
    use super::*;

    fn mk_filter() -> Filter {
        Filter {
            balancers: Balancer::value_variants().to_vec(),
            variants: Variant::value_variants().to_vec(),
            seeds: vec![1, 2, 3, 4],
            drawn: vec![Drawn::Within, Drawn::Beyond],
        }
    }

    fn cells(filter: &Filter) -> Vec<Cell> {
        let batches = filter.lanes().into_iter().flatten();
        batches.flat_map(|batch| batch.cells).collect()
    }

    #[test]
    fn whole_matrix_has_its_rows_and_terminations_and_no_cell_twice() {
        let cells = cells(&mk_filter());
        let distinct: BTreeSet<_> = cells.iter().collect();
        assert_eq!(distinct.len(), cells.len());
        let count = |variant, drawn| {
            let cells = cells.iter();
            cells
                .filter(|cell| cell.variant == variant && cell.drawn == drawn)
                .count()
        };
        let gate = count(Variant::Gate, Drawn::Within);
        assert_eq!(gate, 80);
        assert!(gate * ENDED >= 200);
        assert_eq!(count(Variant::Gate, Drawn::Beyond), 8);
        assert_eq!(count(Variant::NoSettle, Drawn::Within), 4);
        for variant in [
            Variant::None,
            Variant::Sleep5s,
            Variant::Sleep15s,
            Variant::Sleep30s,
        ] {
            assert_eq!(count(variant, Drawn::Within), 4);
        }
    }

    #[test]
    fn batch_has_one_load_balancer_and_at_most_24_pods() {
        for batch in mk_filter().lanes().into_iter().flatten() {
            let balancers: BTreeSet<_> = batch.cells.iter().map(|cell| cell.balancer).collect();
            assert_eq!(balancers.len(), 1);
            let pods = batch
                .cells
                .iter()
                .map(|cell| replicas_before(cell.operation()));
            assert!(pods.sum::<usize>() <= 24, "{batch:?}");
        }
    }

    #[test]
    fn filters_leave_the_rest_out() {
        let filter = Filter {
            balancers: vec![Balancer::TwoGroups],
            seeds: vec![3],
            ..mk_filter()
        };
        let cells = cells(&filter);
        assert_eq!(cells.len(), 4);
        assert!(
            cells
                .iter()
                .all(|cell| cell.seed == 3 && cell.balancer == Balancer::TwoGroups)
        );
    }
}
