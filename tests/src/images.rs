//! The project's own images: their names, and bringing them into a cluster.
//!
//! `make images` builds the archives; this only imports what is there.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

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

/// A few characters that stand for the archives of prestop-gate's own images, and change with them.
///
/// # Errors
/// When one can't be read.
pub fn digest() -> Result<String> {
    let mut digest = Sha256::new();
    for name in ["prestop-gate", "waiter"] {
        let file = folder().join(format!("{name}.tar"));
        let archive = fs::read(&file)
            .with_context(|| format!("failed to read {} (run `make images`)", file.display()))?;
        digest.update(Sha256::digest(&archive));
    }
    let bytes = digest.finalize();
    let digits = bytes.iter().take(8).map(|byte| format!("{byte:02x}"));
    Ok(digits.collect())
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
