//! `make bench`: what the gate costs a pod, measured on the test cluster.
//!
//! Prints a table and writes `target/bench/report.json`. Nothing is asserted: times depend on the machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use sidecar::contract::{CONTAINER, NAMESPACE};
use tests::gate::{GatedPod, mk_app, mk_service, namespace};
use tests::layout::workspace;
use tests::namespace::container_id;
use tests::{Cluster, TestNamespace, gate};

/// Pods that are held and released.
const PODS: usize = 10;
/// How long a waiter idles for its CPU ticks to be counted.
const IDLE: Duration = Duration::from_secs(30);

/// Measures what the gate costs a pod.
#[derive(Debug, Parser)]
struct Args {
    /// The binary in the waiter's image.
    #[arg(long, value_name = "PATH")]
    waiter: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let cluster = gate::cluster().await?;
    let namespace = namespace("bench").await?;
    namespace.apply(mk_service("web")).await?;
    let mut pods = Vec::new();
    for index in 0..PODS {
        let mut app = mk_app(&format!("web-{index}"));
        app["metadata"]["labels"] = json!({"app": "web"});
        pods.push(GatedPod::start(&namespace, app).await?);
    }
    let waiter = cluster_process(&cluster, &pods[0].pod, CONTAINER)?;
    let before = cpu_ticks(waiter)?;
    tokio::time::sleep(IDLE).await;
    let idle_cpu_ticks = cpu_ticks(waiter)? - before;
    let rss_idle = rss_bytes(waiter)?;
    for pod in &pods {
        pod.delete().await?;
    }
    pods[0].event("HoldBegan").await?;
    let rss_holding = rss_bytes(waiter)?;
    let mut delays = Vec::new();
    for pod in &pods {
        let sigterm = pod.sigterm().await?;
        delays.push(sigterm.saturating_sub(released_unix_ms(&pod.waiter.lines()?)?));
    }
    delays.sort_unstable();
    let report = json!({
        "waiter_binary_bytes": fs::metadata(&args.waiter).context("failed to find the waiter's binary")?.len(),
        "waiter_rss_bytes_idle": rss_idle,
        "waiter_rss_bytes_holding": rss_holding,
        "waiter_idle_cpu_ticks_in_30_s": idle_cpu_ticks,
        "webhook_rss_bytes": webhook_rss_bytes(&cluster, &namespace).await?,
        "release_to_sigterm_ms_p50": delays[delays.len() / 2],
        "release_to_sigterm_ms_max": delays[delays.len() - 1],
    });
    let folder = workspace().join("target/bench");
    fs::create_dir_all(&folder).context("failed to create target/bench")?;
    let text = serde_json::to_string_pretty(&report).context("failed to print the report")?;
    fs::write(folder.join("report.json"), &text).context("failed to write the report")?;
    #[expect(clippy::print_stdout, reason = "the report is what the target is for")]
    {
        println!("{text}");
    }
    Ok(())
}

/// The one process of a container.
fn cluster_process(cluster: &Cluster, pod: &Pod, container: &str) -> Result<u32> {
    let processes = cluster.container_processes(&container_id(pod, container)?);
    processes
        .first()
        .copied()
        .with_context(|| format!("failed to find a process of {container}"))
}

async fn webhook_rss_bytes(cluster: &Cluster, namespace: &TestNamespace) -> Result<Vec<u64>> {
    let pods = Api::<Pod>::namespaced(namespace.client().clone(), NAMESPACE);
    let pods = pods
        .list(&ListParams::default())
        .await
        .context("failed to list prestop-gate's pods")?;
    let living = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    living
        .map(|pod| rss_bytes(cluster_process(cluster, pod, NAMESPACE)?))
        .collect()
}

/// Resident memory of a process: proc(5), `VmRSS` in kB.
fn rss_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .context("failed to read a process's status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("failed to find VmRSS")?;
    let kilobytes: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .context("failed to parse VmRSS")?;
    Ok(kilobytes * 1024)
}

/// User and system time of a process in clock ticks: proc(5), fields 14 and 15 of `stat`.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .context("failed to read a process's stat")?;
    let (_, fields) = stat
        .rsplit_once(") ")
        .context("failed to parse a process's stat")?;
    let ticks = fields.split(' ').skip(11).take(2);
    ticks
        .map(|field| {
            field
                .parse::<u64>()
                .context("failed to parse a process's time")
        })
        .sum()
}

/// When the waiter let its hooks go, by its log.
fn released_unix_ms(lines: &[String]) -> Result<u64> {
    let line = lines
        .iter()
        .find(|line| line.contains(" Released "))
        .context("failed to find the release in the waiter's log")?;
    let time: Timestamp = line
        .split(' ')
        .next()
        .unwrap_or_default()
        .parse()
        .context("failed to parse the waiter's time")?;
    u64::try_from(time.as_millisecond()).context("failed to use a time before 1970")
}
