//! Shows what a rollout costs behind a load balancer that lags, without and with prestop-gate: one batch of the lab.
//! Runs inside `cluster run`.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tests::lab::balancer::Balancer;
use tests::lab::cell::{Cell, Drawn};
use tests::lab::plan::Batch;
use tests::lab::report::{Row, objections};
use tests::lab::session::{self, Session};
use tests::lab::story::Story;
use tests::lab::table::{LEGEND, summary, table};
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
    let args = Args::parse();
    match run(args).await {
        Ok(objections) if objections.is_empty() => ExitCode::SUCCESS,
        Ok(objections) => {
            say(&objections.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("The demo could not be run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Gives what speaks against the result, a sentence each.
async fn run(args: Args) -> Result<Vec<String>> {
    let Args {
        variants,
        seed,
        manifests,
        report,
    } = args;
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
        cells: cells.iter().copied().collect(),
    };
    let session = Session {
        manifests,
        report: report.clone(),
        story: Story::begin(),
    };
    let mut rows = session::run(&session, vec![vec![batch]], Vec::new()).await?;
    rows.sort_by_key(Row::cell);
    say(&format!("\n{}\n{LEGEND}", table(&rows)));
    say(&summary(&rows));
    say(&format!("Report: {}", report.display()));
    Ok(objections(&rows, &cells))
}

/// A closed stdout must not end a run.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}
