//! A container's log as a file on this machine, readable after its pod is gone.
//!
//! The kubelet deletes a pod's logs with the pod. A file that was opened before stays readable, and
//! everything that the container wrote until its end is in it.

use std::{
    fs::File,
    io::{Read, Seek},
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Deserialize;

use crate::Cluster;

/// An opened log.
#[derive(Debug)]
pub struct ContainerLog {
    file: File,
}

/// A line that `tests/app` writes about itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// What happened: `started`, `sigterm`, `exit`, or `record` for a hook of the pod's own.
    pub event: String,
    /// When, in milliseconds of this machine's wall clock.
    pub unix_ms: u64,
    /// The words a hook was given.
    pub text: Option<String>,
    /// A hook's whole command line.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Requests answered so far, probes not counted.
    pub requests: Option<u64>,
    /// When the last of them came.
    pub last_request_unix_ms: Option<u64>,
}

impl ContainerLog {
    /// Opens the log of a container that has started, of its latest start so far.
    ///
    /// # Errors
    /// When the container never started, or is gone.
    pub fn open(cluster: &Cluster, pod: &Pod, container: &str) -> Result<Self> {
        let status = pod.status.clone().unwrap_or_default();
        let all = status
            .container_statuses
            .into_iter()
            .chain(status.init_container_statuses);
        let starts = all
            .flatten()
            .find(|it| it.name == container)
            .map(|it| it.restart_count);
        let starts = starts
            .with_context(|| format!("failed to find container {container} in the pod's status"))?;
        let (namespace, uid) = (
            pod.namespace().unwrap_or_default(),
            pod.uid().unwrap_or_default(),
        );
        let folder = format!(
            "{namespace}_{}_{uid}/{container}/{starts}.log",
            pod.name_any()
        );
        let path = cluster.layout().pod_logs().join(folder);
        let file =
            File::open(&path).with_context(|| format!("failed to open {}", path.display()))?;
        Ok(Self { file })
    }

    /// All lines so far, without the time and stream that containerd puts before each.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn lines(&self) -> Result<Vec<String>> {
        let mut file = &self.file;
        let mut text = Vec::new();
        file.rewind()
            .and_then(|()| file.read_to_end(&mut text))
            .context("failed to read a container's log")?;
        Ok(String::from_utf8_lossy(&text)
            .lines()
            .map(content)
            .collect())
    }

    /// All lines so far that are records of `tests/app`.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn records(&self) -> Result<Vec<Record>> {
        Ok(self
            .lines()?
            .iter()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect())
    }

    /// The first record of an event.
    ///
    /// # Errors
    /// When there is none.
    pub fn record(&self, event: &str) -> Result<Record> {
        let records = self.records()?;
        let found = records.iter().find(|record| record.event == event).cloned();
        found.with_context(|| format!("failed to find event {event} in {records:?}"))
    }
}

/// `2026-01-02T03:04:05.6Z stdout F text` → `text`.
fn content(line: &str) -> String {
    line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containerd_puts_before_a_line_is_cut_off() {
        assert_eq!(
            content("2026-01-02T03:04:05.6Z stdout F {\"a\": 1}"),
            "{\"a\": 1}"
        );
        assert_eq!(content("2026-01-02T03:04:05.6Z stdout F "), "");
    }
}
