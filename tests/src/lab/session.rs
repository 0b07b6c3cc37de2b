//! A whole session in the cluster: account and prestop-gate first, then the batches, and an end to it all on a signal.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::account::Account;
use super::batch::Lab;
use super::manifests;
use super::plan::Batch;
use super::report::Row;
use super::story::Story;
use super::trial::Settings;
use crate::{Cluster, images};

/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(30);

/// What a session needs to know.
#[derive(Debug, Clone)]
pub struct Session {
    /// The manifests of prestop-gate.
    pub manifests: PathBuf,
    /// Where the report goes, and pictures beside it.
    pub report: PathBuf,
    /// Where what happens is told.
    pub story: Story,
}

/// Runs the batches of all lanes, but for the cells that `earlier` rows fill, and answers with all rows. What was
/// started outside the cluster ends with the future; what is in it, with the cluster.
pub async fn run(session: &Session, lanes: Vec<Vec<Batch>>, earlier: Vec<Row>) -> Result<Vec<Row>> {
    let Session {
        manifests,
        report,
        story,
    } = session;
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
        manifests::install(&client, cluster.kubectl(), manifests).await?;
        story.tell("prestop-gate", "ready");
        let settings = Settings {
            client: client.clone(),
            image: images::reference("app"),
            account,
            pictures: report.parent().unwrap_or_else(|| Path::new(".")).to_owned(),
            story: *story,
        };
        let lab = Lab::new(settings, lanes, report, earlier);
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
