//! Shows what a rollout costs behind a load balancer that lags, without and with prestop-gate: one batch of the lab.
//! Runs inside `cluster run`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tests::lab::balancer::Balancer;
use tests::lab::cell::{Cell, Drawn};
use tests::lab::plan::Batch;
use tests::lab::session::{self, Session};
use tests::lab::traffic::Traffic;
use tests::lab::variant::Variant;

/// Restarts a three-replica service behind an ALB that lags under each variant, and counts failed requests.
#[derive(Debug, Parser)]
struct Args {
    /// What to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Variant::None, Variant::Sleep5s, Variant::Sleep15s, Variant::NoSettle, Variant::Gate])]
    variants: Vec<Variant>,
    /// What the load balancer's lags are drawn from: 5 to 20 s for each of its three sources. Every fourth seed from 4
    /// on restarts a rollout; with the others, pods behind the gate are ended in other ways.
    #[arg(long, default_value_t = 4)]
    seed: u64,
    /// The manifests of prestop-gate.
    #[arg(long, default_value = "tests/manifests/lab")]
    manifests: PathBuf,
    /// Where the report goes, and pictures beside it.
    #[arg(long, default_value = "target/demo/report.json")]
    report: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Args {
        variants,
        seed,
        manifests,
        report,
    } = Args::parse();
    let cells: BTreeSet<_> = variants
        .into_iter()
        .map(|variant| Cell {
            balancer: Balancer::Alb,
            variant,
            traffic: Traffic::Mixed,
            seed,
            drawn: Drawn::Within,
        })
        .collect();
    let batch = Batch {
        cells: cells.into_iter().collect(),
    };
    let session = Session {
        lanes: vec![vec![batch]],
        resume: false,
        manifests,
        report,
    };
    session::main("The demo", session).await
}
