//! A whole session in the cluster: account and prestop-gate first, then the batches, an end to it all on a signal, and
//! what came of it for people.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::account::Account;
use super::batch::Lab;
use super::manifests;
use super::plan::Batch;
use super::report::{Row, objections, read_earlier};
use super::story::Story;
use super::table::{LEGEND, summary, table};
use super::trial::Settings;
use crate::{Cluster, images};

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(30);

/// What a session needs to know.
#[derive(Debug, Clone)]
pub struct Session {
    /// The batches of each lane.
    pub lanes: Vec<Vec<Batch>>,
    /// Whether the rows of an earlier run are kept, and not run again.
    pub resume: bool,
    /// The manifests of prestop-gate.
    pub manifests: PathBuf,
    /// Where the report goes, and pictures beside it.
    pub report: PathBuf,
}

/// Runs `session`, prints what came of it, and answers with an error unless all is as it must be. `who` it is begins
/// the sentence that tells why it could not be run.
pub async fn main(who: &str, session: Session) -> ExitCode {
    match run_and_judge(session).await {
        Ok(objections) if objections.is_empty() => ExitCode::SUCCESS,
        Ok(objections) => {
            say(&objections.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("{who} could not be run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Gives what speaks against the result, a sentence each.
async fn run_and_judge(session: Session) -> Result<Vec<String>> {
    let batches = session.lanes.iter().flatten();
    let planned: BTreeSet<_> = batches.flat_map(|batch| &batch.cells).copied().collect();
    ensure!(!planned.is_empty(), "nothing fits these filters");
    let report = session.report.clone();
    let mut rows = run(session).await?;
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

/// Runs the batches of all lanes, but for the cells that earlier rows fill, and answers with all rows. What was
/// started outside the cluster ends with the future; what is in it, with the cluster.
async fn run(session: Session) -> Result<Vec<Row>> {
    let Session {
        lanes,
        resume,
        manifests,
        report,
    } = session;
    let build = images::digest()?;
    let earlier = if resume {
        read_earlier(&report, &build)?
    } else {
        Vec::new()
    };
    let story = Story::begin();
    let cluster = Cluster::from_env()?;
    let client = cluster.client().await?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let work = async {
        let account = Arc::new(Account::open(&client).await?);
        story.tell(
            "prestop-gate",
            &format!("kubectl apply -k {}", manifests.display()),
        );
        manifests::install(&client, cluster.kubectl(), &manifests).await?;
        story.tell("prestop-gate", "ready");
        let settings = Settings {
            client: client.clone(),
            image: images::reference("app"),
            account,
            pictures: report.parent().unwrap_or_else(|| Path::new(".")).to_owned(),
            build,
            story,
        };
        let lab = Lab::new(settings, lanes, &report, earlier);
        story.tell("lab", &format!("{} runs", lab.cells()));
        tokio::select! {
            rows = lab.run() => rows,
            () = tell_progress(&lab) => bail!("progress is told for ever"),
        }
    };
    tokio::select! {
        rows = Box::pin(work) => rows,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}

async fn tell_progress(lab: &Lab) {
    loop {
        sleep(PROGRESS).await;
        lab.tell_progress();
    }
}
