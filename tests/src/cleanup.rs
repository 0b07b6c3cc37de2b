//! Removes every trace of a cluster, whether it ended well, failed, or was killed long ago.
//!
//! Nothing here trusts a process id that was written down: what belongs to a cluster is found by
//! its network namespaces, its cgroup and its mounts, which carry its id.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::{
    mount::{UnmountFlags, unmount},
    process::Signal,
};

use crate::{
    cgroup,
    layout::{self, DEFAULT_VERSION, Layout},
    netns, process,
};

/// How long killed processes may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
const CLAIM_LOCK: &str = "/run/prestop-gate-test.lock";
/// How many earlier clusters' logs stay.
const KEPT_LOGS: usize = 5;

/// Held while a cluster's name is taken or a dead one is removed, so that two starts don't meet.
#[derive(Debug)]
pub struct Claiming {
    _lock: File,
}

impl Claiming {
    /// Waits until no other process is at it.
    ///
    /// # Errors
    /// When the lock file can't be used.
    pub fn begin() -> Result<Self> {
        let lock =
            File::create(CLAIM_LOCK).with_context(|| format!("failed to create {CLAIM_LOCK}"))?;
        lock.lock()
            .with_context(|| format!("failed to lock {CLAIM_LOCK}"))?;
        Ok(Self { _lock: lock })
    }
}

/// Removes all clusters whose supervising process is gone, and returns their ids.
///
/// # Errors
/// When one of them can't be removed completely.
pub fn remove_left_behind(_claiming: &Claiming) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for id in layout::known_ids()? {
        if is_supervised(&id)? {
            continue;
        }
        // A cluster that died before it wrote its layout has no files elsewhere than its id says.
        let layout = Layout::load(&id).unwrap_or_else(|_| Layout::new(&id, DEFAULT_VERSION));
        remove(&layout)?;
        removed.push(id);
    }
    Ok(removed)
}

/// Whether a living process holds the lock of the cluster `id`.
///
/// # Errors
/// When the lock can't be looked at.
pub fn is_supervised(id: &str) -> Result<bool> {
    let path = Layout::new(id, DEFAULT_VERSION).lock();
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other.with_context(|| format!("failed to open {}", path.display()))?,
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("failed to lock {}", path.display()))
        }
    }
}

/// Ends all processes of a cluster but the calling one, and removes its namespaces, mounts, cgroups
/// and files. Logs stay.
///
/// # Errors
/// Names what could not be removed.
pub fn remove(layout: &Layout) -> Result<()> {
    end_processes(layout)?;
    remove_global_leftovers(layout);
    for folder in [layout.state.clone(), layout.run()] {
        unmount_below(&folder)?;
    }
    netns::delete(layout)?;
    cgroup::remove(&layout.cgroup())?;
    // The lock goes last: until then another start sees that something is left.
    for folder in [layout.state.clone(), layout.run()] {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("failed to remove {}", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the logs of all but the latest clusters, and of those that run.
pub fn prune_logs(layout: &Layout) {
    let Some(folder) = layout.logs.parent() else {
        return;
    };
    let is_running = |logs: &Path| {
        let id = logs.file_name().and_then(|id| id.to_str());
        id.is_some_and(|id| is_supervised(id).unwrap_or(true))
    };
    let mut logs = entries(folder);
    logs.retain(|logs| !is_running(logs));
    logs.sort_by_key(|path| path.metadata().and_then(|it| it.modified()).ok());
    for old in logs.iter().rev().skip(KEPT_LOGS) {
        drop(fs::remove_dir_all(old));
    }
}

fn end_processes(layout: &Layout) -> Result<()> {
    let started = Instant::now();
    loop {
        let mut found = namespace_processes(layout)?;
        found.extend(cgroup::processes(&layout.cgroup()));
        found.remove(&std::process::id());
        if found.is_empty() {
            return Ok(());
        }
        if started.elapsed() > KILL_TIMEOUT {
            bail!("failed to end processes {found:?} of cluster {}", layout.id);
        }
        for &pid in &found {
            process::signal(pid, Signal::KILL)?;
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "runs in a destructor, where nothing can be awaited"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

/// The processes in the cluster's two network namespaces. Pods have their own; their processes are
/// found by cgroup.
fn namespace_processes(layout: &Layout) -> Result<BTreeSet<u32>> {
    let own: Vec<_> = [layout.node_netns(), layout.outside_netns()]
        .iter()
        .filter_map(|name| fs::metadata(netns::path(name)).ok())
        .map(|file| (file.dev(), file.ino()))
        .collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("failed to list /proc")? {
        let path = entry?.path();
        let pid = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.parse().ok());
        // A process may end, or be a zombie, while we look at it.
        let (Some(pid), Ok(file)) = (pid, fs::metadata(path.join("ns/net"))) else {
            continue;
        };
        if own.contains(&(file.dev(), file.ino())) {
            found.insert(pid);
        }
    }
    Ok(found)
}

/// Unmounts everything below a folder, last mounted first.
fn unmount_below(folder: &Path) -> Result<()> {
    let table =
        fs::read_to_string("/proc/self/mountinfo").context("failed to read the mount table")?;
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(Path::new);
    let points: Vec<_> = points.filter(|point| point.starts_with(folder)).collect();
    for point in points.iter().rev() {
        unmount(*point, UnmountFlags::DETACH)
            .with_context(|| format!("failed to unmount {}", point.display()))?;
    }
    Ok(())
}

/// What containerd, CNI and the kubelet leave in directories that they share with others of their
/// kind. Not being able to remove one harms nobody.
fn remove_global_leftovers(layout: &Layout) {
    let tasks = layout
        .run()
        .join("containerd/io.containerd.runtime.v2.task/k8s.io");
    for task in entries(&tasks) {
        let address = fs::read_to_string(task.join("address")).unwrap_or_default();
        if let Some(socket) = address.trim().strip_prefix("unix://") {
            drop(fs::remove_file(socket));
        }
    }
    // Each tells which network namespace it is about, and those lie in the run directory.
    let sandbox = format!("{}/", layout.run().display());
    for file in entries(Path::new("/var/lib/cni/results")) {
        if fs::read_to_string(&file).is_ok_and(|text| text.contains(&sandbox)) {
            drop(fs::remove_file(&file));
        }
    }
    for link in entries(Path::new("/var/log/containers")) {
        if fs::read_link(&link).is_ok_and(|target| target.starts_with(&layout.state)) {
            drop(fs::remove_file(&link));
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    found.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        process::{Command, Stdio},
    };

    use super::*;

    fn mk_run(prefix: &str) -> (Layout, File) {
        let layout = Layout::new(&format!("{prefix}{}", std::process::id()), DEFAULT_VERSION);
        fs::create_dir_all(layout.run()).unwrap();
        let lock = File::create(layout.lock()).unwrap();
        layout.save().unwrap();
        (layout, lock)
    }

    #[test]
    fn lock_of_a_living_process_marks_the_cluster_as_supervised() {
        // Else a cluster that starts at this moment may remove it.
        let claiming = Claiming::begin().unwrap();
        let (layout, lock) = mk_run("locked");
        lock.lock().unwrap();
        assert!(is_supervised(&layout.id).unwrap());
        assert!(!remove_left_behind(&claiming).unwrap().contains(&layout.id));
        drop(lock);
        assert!(!is_supervised(&layout.id).unwrap());
        remove(&layout).unwrap();
    }

    #[test]
    fn what_a_killed_run_left_is_found_and_removed() {
        let claiming = Claiming::begin().unwrap();
        let (layout, _unlocked) = mk_run("killed");
        let mount = layout.state.join("mount");
        fs::create_dir_all(&mount).unwrap();
        process::check(
            Command::new("mount")
                .args(["-t", "tmpfs", "left"])
                .arg(&mount),
        )
        .unwrap();
        netns::create(&layout).unwrap();
        cgroup::create(&layout.cgroup()).unwrap();
        // Silent: one that outlives a failed test must not hold the test runner's output open.
        let sleep = |mut command: Command| {
            command
                .arg("600")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut component = sleep(netns::command(&layout.node_netns(), "sleep"));
        let mut load = sleep(netns::command(&layout.outside_netns(), "sleep"));
        let mut container = sleep(Command::new("sleep"));
        cgroup::join(&layout.cgroup(), container.id()).unwrap();

        assert!(remove_left_behind(&claiming).unwrap().contains(&layout.id));
        for child in [&mut component, &mut load, &mut container] {
            let status = child.try_wait().unwrap().expect("it must have ended");
            assert_eq!(status.signal(), Some(9));
        }
        let gone = [
            layout.run(),
            layout.state.clone(),
            netns::path(&layout.node_netns()),
        ];
        assert!(gone.iter().all(|path| !path.exists()), "{gone:?}");
        assert!(cgroup::join(&layout.cgroup(), std::process::id()).is_err());
    }
}
