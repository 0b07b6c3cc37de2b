//! The project's own images: their names, and bringing them into a cluster.
//!
//! `make images` builds the archives; this only imports what is there.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};

use crate::{
    layout::{Layout, workspace},
    process::check,
};

/// The full name of one of our images: `waiter` is `prestop-gate.dev/waiter:0.1.0`.
pub fn reference(name: &str) -> String {
    format!("prestop-gate.dev/{name}:{}", env!("CARGO_PKG_VERSION"))
}

/// The folder of the archives, one `NAME.tar` each.
pub fn folder() -> PathBuf {
    workspace().join("target/images")
}

/// Imports every archive into the cluster's containerd.
///
/// # Errors
/// When there are none, or one can't be imported.
pub fn import_all(layout: &Layout) -> Result<()> {
    let folder = folder();
    let entries = fs::read_dir(&folder)
        .with_context(|| format!("failed to list {} (run `make images`)", folder.display()))?;
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "tar") {
            check(ctr(layout).args(["images", "import"]).arg(&file))?;
        }
    }
    Ok(())
}

/// `ctr`, containerd's own client, pointed at the cluster's containerd and the kubelet's namespace in it.
pub fn ctr(layout: &Layout) -> Command {
    let mut command = Command::new("ctr");
    command
        .arg("--address")
        .arg(layout.containerd_socket())
        .args(["--namespace", "k8s.io"]);
    command
}
