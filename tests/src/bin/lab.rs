//! The whole traffic lab: every load balancer, traffic and operation behind the gate, and what it is compared with.
//! Runs inside `cluster run`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};
use tests::lab::balancer::Balancer;
use tests::lab::cell::{Cell, Drawn};
use tests::lab::plan::Filter;
use tests::lab::report::{Row, objections, read};
use tests::lab::session::{self, Session};
use tests::lab::story::Story;
use tests::lab::table::{LEGEND, summary, table};
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
    let args = Args::parse();
    match run(args).await {
        Ok(objections) if objections.is_empty() => ExitCode::SUCCESS,
        Ok(objections) => {
            say(&objections.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("The lab could not be run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Gives what speaks against the result, a sentence each.
async fn run(args: Args) -> Result<Vec<String>> {
    let Args {
        balancers,
        variants,
        mut seeds,
        mut drawn,
        quick,
        resume,
        manifests,
        report,
    } = args;
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
    let earlier = if resume { read(&report)? } else { Vec::new() };
    let session = Session {
        manifests,
        report: report.clone(),
        story: Story::begin(),
    };
    let planned: BTreeSet<Cell> = filter.cells().into_iter().collect();
    let lanes = filter.lanes();
    let mut rows = session::run(&session, lanes, earlier).await?;
    rows.sort_by_key(Row::cell);
    say(&format!("\n{}\n{LEGEND}", table(&rows)));
    say(&summary(&rows));
    say(&format!("Report: {}", report.display()));
    Ok(objections(&rows, &planned))
}

/// A closed stdout must not end a run.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}
