//! The whole traffic lab: every load balancer, traffic and operation behind the gate, and what it is compared with.
//! Runs inside `cluster run`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tests::lab::balancer::Balancer;
use tests::lab::cell::Drawn;
use tests::lab::plan::Filter;
use tests::lab::session::{self, Session};
use tests::lab::variant::Variant;

/// Ends pods behind load balancers that lag, under load, and counts what fails. Exits with an error unless all is as
/// it must be: no failure behind the gate where lags lie within its settle times, and failures where it is turned off.
#[derive(Debug, Parser)]
struct Args {
    /// Load balancers.
    #[arg(long = "only", value_enum, value_delimiter = ',', value_name = "LB", default_values_t = Balancer::value_variants().iter().copied())]
    balancers: Vec<Balancer>,
    /// What delays SIGTERM.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Variant::value_variants().iter().copied())]
    variants: Vec<Variant>,
    /// Seeds of the gate's rows; the first is that of all other rows.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4])]
    seeds: Vec<u64>,
    /// How far lags reach.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Drawn::Within, Drawn::Beyond])]
    drawn: Vec<Drawn>,
    /// One seed, and no lags beyond the settle times.
    #[arg(long)]
    quick: bool,
    /// Keep the rows of an earlier run, and don't run them again.
    #[arg(long)]
    resume: bool,
    /// The manifests of prestop-gate.
    #[arg(long, default_value = "tests/manifests/lab")]
    manifests: PathBuf,
    /// Where the report goes, and pictures beside it.
    #[arg(long, default_value = "target/lab/report.json")]
    report: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Args {
        balancers,
        variants,
        mut seeds,
        mut drawn,
        quick,
        resume,
        manifests,
        report,
    } = Args::parse();
    if quick {
        seeds.truncate(1);
        drawn.retain(|drawn| *drawn == Drawn::Within);
    }
    let filter = Filter {
        balancers,
        variants,
        seeds,
        drawn,
    };
    let session = Session {
        lanes: filter.lanes(),
        resume,
        manifests,
        report,
    };
    session::main("The lab", session).await
}
