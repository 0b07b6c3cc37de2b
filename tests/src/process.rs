//! Child processes: one-shot commands with their output in the error, and the cluster's components.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// How many of a log's last lines an error shows.
const SHOWN_LINES: usize = 15;

/// Runs a command to its end.
///
/// # Errors
/// When it can't be started or fails; the error holds what it printed.
pub fn check(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs a command to its end and returns what it printed on stdout.
///
/// # Errors
/// When it can't be started or fails; the error holds what it printed on stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let text = format!("{command:?}").replace('"', "");
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to run {text}"))?;
    if !output.status.success() {
        bail!(
            "failed to run {text}: {}, {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sends a signal; a process that is gone already is no error.
///
/// # Errors
/// When the process may not be signalled.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let raw = raw.with_context(|| format!("failed to signal process {pid}: no such id"))?;
    match kill_process(raw, signal) {
        Err(error) if error != rustix::io::Errno::SRCH => {
            Err(error).with_context(|| format!("failed to signal process {pid}"))
        }
        _ => Ok(()),
    }
}

/// The last lines of a file, indented, for error messages.
pub fn last_lines(file: &Path) -> String {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    let shown: Vec<_> = shown.iter().map(|line| format!("    {line}")).collect();
    shown.join(
        "
",
    )
}

/// The processes that a cluster is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names are the components' own")]
pub enum Name {
    Etcd,
    Containerd,
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    Kubelet,
    KubeProxy,
}

impl Name {
    /// The binary's and the log file's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Containerd => "containerd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
        }
    }
}

/// One process of the cluster, which can be stopped and started again.
#[derive(Debug)]
pub struct Component {
    name: Name,
    command: Command,
    log: PathBuf,
    child: Option<Child>,
}

impl Component {
    /// Starts `command`, its output appended to the file `log`.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn start(name: Name, mut command: Command, log: PathBuf) -> Result<Self> {
        // Its own process group, so that Ctrl-C in a terminal reaches the supervising process only.
        // Proxy variables and the like of the caller's environment must not reach it.
        let search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        command
            .env_clear()
            .env("PATH", search)
            .env("HOME", "/root")
            .process_group(0);
        let mut component = Self {
            name,
            command,
            log,
            child: None,
        };
        component.restart()?;
        Ok(component)
    }

    /// Which component this is.
    pub fn name(&self) -> Name {
        self.name
    }

    /// Starts the process again if it isn't running.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn restart(&mut self) -> Result<()> {
        if self.child.is_some() {
            return Ok(());
        }
        let name = self.name.as_str();
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("failed to open {}", self.log.display()))?;
        self.command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.child = Some(
            self.command
                .spawn()
                .with_context(|| format!("failed to start {name}"))?,
        );
        Ok(())
    }

    /// Ends the process with `signal` and waits for its end.
    ///
    /// # Errors
    /// When the process can't be signalled.
    pub fn stop(&mut self, kind: Signal) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), kind)?;
            child
                .wait()
                .with_context(|| format!("failed to wait for {}", self.name.as_str()))?;
        }
        Ok(())
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether the process ended without being asked to: its status, once.
    ///
    /// # Errors
    /// When its state can't be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else {
            return Ok(None);
        };
        let status = child
            .try_wait()
            .with_context(|| format!("failed to look at {}", self.name.as_str()))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    /// Says what happened, with the log's last lines.
    pub fn explain(&self, what: &str) -> String {
        let log = self.log.display();
        format!(
            "{} {what}; the end of {log}:\n{}",
            self.name.as_str(),
            last_lines(&self.log)
        )
    }
}

impl Drop for Component {
    fn drop(&mut self) {
        // Reaped here, it leaves no zombie to an init that may not care.
        drop(self.stop(Signal::KILL));
    }
}
