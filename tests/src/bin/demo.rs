//! Shows what a rollout costs behind a load balancer that lags, without and with prestop-gate.
//! Runs inside `cluster run`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use kube::Client;
use tests::lab::manifests;
use tests::lab::report::{Outcome, Row, table, verdict};
use tests::lab::story::Story;
use tests::lab::trial::{Settings, Trial};
use tests::lab::variant::Variant;
use tests::{Cluster, images};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

/// Restarts a three-replica service behind a load balancer under each variant, and counts failed requests.
#[derive(Debug, Parser)]
struct Args {
    /// What to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Variant::None, Variant::Sleep5s, Variant::ShortSettle, Variant::Gate])]
    variants: Vec<Variant>,
    /// How many seconds late the load balancer drops a pod; 17 were measured for an AWS ALB.
    #[arg(long, default_value_t = 17)]
    lag_seconds: u64,
    /// Requests per second under each variant.
    #[arg(long, default_value_t = 125)]
    rate: u32,
    /// Rollout restarts under each variant.
    #[arg(long, default_value_t = 2)]
    restarts: usize,
    /// Requests under each variant at least.
    #[arg(long, default_value_t = 10_000)]
    min_requests: u64,
    /// The manifests to apply where a variant needs the gate.
    #[arg(long, default_value = "manifests/base")]
    manifests: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "target/demo/report.json")]
    report: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    let story = Story::begin();
    match run(&args, story).await {
        Ok(reasons) if reasons.is_empty() => ExitCode::SUCCESS,
        Ok(reasons) => {
            say(&reasons.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("The demo could not be run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Gives the reasons why the demonstration did not show what it is to show.
async fn run(args: &Args, story: Story) -> Result<Vec<String>> {
    let cluster = Cluster::from_env()?;
    let client = cluster.client().await?;
    let trials = trials(args, &client, story);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // The loser of this race is dropped, and HAProxy and all else that it started with it.
    let outcomes = tokio::select! {
        outcomes = compare(args, &cluster, &client, &trials, story) => outcomes,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
    };
    for trial in &trials {
        // The cluster ends soon, with all in it; this is for one that is kept.
        let _ = timeout(Duration::from_secs(5), trial.clean_up()).await;
    }
    let outcomes = outcomes?;
    write_report(&args.report, &outcomes)?;
    say(&format!("\n{}", table(&outcomes)));
    say(
        "failed: no whole answer with status 200. held: from deletion to SIGTERM.\nwaste: from the last request that reached a pod to its SIGTERM.",
    );
    let late = outcomes
        .iter()
        .map(|outcome| outcome.lateness_p99_seconds)
        .fold(0.0, f64::max);
    say(&format!(
        "99 of 100 requests left at most {:.0} ms later than planned.",
        late * 1000.0
    ));
    say(&format!("Report: {}", args.report.display()));
    Ok(verdict(&outcomes))
}

fn trials(args: &Args, client: &Client, story: Story) -> Vec<Trial> {
    let settings = Settings {
        image: images::reference("app"),
        replicas: 3,
        restarts: args.restarts,
        lag: Duration::from_secs(args.lag_seconds),
        rate: args.rate,
        min_requests: args.min_requests,
    };
    let mut variants = args.variants.clone();
    variants.sort_unstable();
    variants.dedup();
    variants
        .into_iter()
        .map(|variant| Trial::new(client.clone(), settings.clone(), variant, story))
        .collect()
}

/// Runs all trials at once: each has its own namespace, load balancer and load, and they need little of the machine.
async fn compare(
    args: &Args,
    cluster: &Cluster,
    client: &Client,
    trials: &[Trial],
    story: Story,
) -> Result<Vec<Outcome>> {
    if trials
        .iter()
        .any(|trial| trial.variant().settle().is_some())
    {
        story.tell(
            "prestop-gate",
            &format!("kubectl apply -k {}", args.manifests.display()),
        );
        manifests::install(client, cluster.kubectl(), &args.manifests).await?;
        story.tell("prestop-gate", "ready");
    }
    let running = futures::future::try_join_all(trials.iter().map(|trial| async {
        let name = trial.variant().name();
        Box::pin(trial.clone().run())
            .await
            .with_context(|| format!("failed to try \"{name}\""))
    }));
    tokio::select! {
        outcomes = running => outcomes,
        () = tell_progress(trials, story) => unreachable!("progress is told for ever"),
    }
}

async fn tell_progress(trials: &[Trial], story: Story) {
    loop {
        sleep(Duration::from_secs(5)).await;
        let counts: Vec<_> = trials
            .iter()
            .map(|trial| {
                let (requests, failed) = trial.so_far();
                format!("{} {failed} of {requests}", trial.variant().name())
            })
            .collect();
        story.tell("failed", &counts.join(" | "));
    }
}

fn write_report(path: &Path, outcomes: &[Outcome]) -> Result<()> {
    let rows: Vec<&Row> = outcomes.iter().map(|outcome| &outcome.row).collect();
    let text =
        serde_json::to_string_pretty(&rows).context("failed to put the report into words")?;
    fs::create_dir_all(path.parent().unwrap_or_else(|| Path::new(".")))
        .and_then(|()| fs::write(path, text + "\n"))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// A closed stdout must not end a run.
fn say(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}
