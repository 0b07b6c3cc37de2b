//! The cgroup that holds all pods of a cluster, in every hierarchy (v1, hybrid) or the one (v2).
//!
//! It makes two kubelets on one machine possible, and it is how the processes of pods are found:
//! by where they are, never by a process id written down earlier.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

const ROOT: &str = "/sys/fs/cgroup";

/// Creates the cgroup `name` in each hierarchy.
///
/// # Errors
/// When a directory can't be made or the cpuset can't be filled.
pub fn create(name: &str) -> Result<()> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        // v2: controllers must be handed down before the kubelet may use them.
        for controller in ["cpu", "cpuset", "memory", "pids"] {
            let file = Path::new(ROOT).join("cgroup.subtree_control");
            fs::write(&file, format!("+{controller}"))
                .with_context(|| format!("failed to enable cgroup controller {controller}"))?;
        }
    }
    for hierarchy in hierarchies()? {
        let directory = hierarchy.join(name);
        fs::create_dir_all(&directory)
            .with_context(|| format!("failed to create cgroup {}", directory.display()))?;
        // A v1 cpuset starts empty, and no process can be moved into an empty one.
        if hierarchy.ends_with("cpuset") {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = fs::read_to_string(hierarchy.join(file))?;
                fs::write(directory.join(file), value.trim())
                    .with_context(|| format!("failed to fill {file} of cgroup {name}"))?;
            }
        }
    }
    Ok(())
}

/// The processes in the cgroup `name` and below it.
pub fn processes(name: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for directory in hierarchies().unwrap_or_default() {
        for directory in tree(&directory.join(name)) {
            found.extend(members(&directory));
        }
    }
    found
}

/// The processes of the container `container_id`, somewhere below the cgroup `name`.
pub fn container_processes(name: &str, container_id: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for hierarchy in hierarchies().unwrap_or_default() {
        let all = tree(&hierarchy.join(name));
        for directory in all
            .iter()
            .filter(|directory| directory.ends_with(container_id))
        {
            found.extend(members(directory));
        }
    }
    found
}

/// Moves a process into the cgroup `name`.
#[cfg(test)]
pub(crate) fn join(name: &str, pid: u32) -> Result<()> {
    for hierarchy in hierarchies()? {
        fs::write(hierarchy.join(name).join("cgroup.procs"), pid.to_string())?;
    }
    Ok(())
}

/// Removes the cgroup `name` and all below it. Its processes must have ended.
///
/// # Errors
/// When a directory is still in use.
pub fn remove(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        for directory in tree(&hierarchy.join(name)).iter().rev() {
            match fs::remove_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| {
                        format!("failed to remove cgroup {}", directory.display())
                    });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from(ROOT);
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&root).with_context(|| format!("failed to list {ROOT}"))? {
        let path = entry?.path();
        // Links name co-mounted controllers twice.
        if !path.is_symlink() && path.join("cgroup.procs").exists() {
            found.push(path);
        }
    }
    Ok(found)
}

/// `directory` and all directories below it, parents first.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut queue = vec![directory.to_owned()];
    while let Some(directory) = queue.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        found.push(directory);
        queue.extend(
            entries
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.is_dir()),
        );
    }
    found
}

fn members(directory: &Path) -> Vec<u32> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}
