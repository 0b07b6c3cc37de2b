//! Puts the binary where the mains' hooks run it, and tries it out.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::contract::IMAGE_BINARY_PATH;
use crate::log;
use crate::paths::Paths;

/// The running binary.
const OWN_BINARY: &str = "/proc/self/exe";

/// Installs the binary. A failure is logged only: whoever can't be gated must still be able to start.
pub(super) fn install(paths: &Paths) {
    let binary = paths.binary();
    match copy(&binary) {
        Ok(()) => {
            std::thread::spawn(move || log::line(format_args!("{}", try_out(&binary))));
        }
        Err(error) => {
            log::line(format_args!(
                "Failed to install the binary, hooks can't run path={} error=\"{error}\"",
                binary.display()
            ));
        }
    }
}

/// Copies under another name first: a hook may be running the file that an earlier waiter left.
fn copy(binary: &Path) -> io::Result<()> {
    let directory = binary.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(directory)?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let temporary = binary.with_extension("new");
    // Without /proc the image's own path still leads there.
    fs::copy(OWN_BINARY, &temporary).or_else(|_| fs::copy(IMAGE_BINARY_PATH, &temporary))?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o755))?;
    fs::rename(&temporary, binary)
}

/// Runs the installed binary once: a volume mounted noexec would make every hook fail, and each pod get its SIGTERM at
/// once. Better to read that in the log on day one.
fn try_out(binary: &Path) -> String {
    // Everything captured or inherited: a null device is one more thing that could be missing.
    let outcome = Command::new(binary)
        .arg("--version")
        .stdin(Stdio::inherit())
        .output();
    let trouble = match outcome.map(|output| output.status) {
        Ok(status) if status.success() => {
            return format!("Installed the binary path={}", binary.display());
        }
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    format!(
        "Failed to try out the binary, hooks can't run path={} error={trouble:?}",
        binary.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trying_out_tells_what_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let binary = directory.path().join("waiter");
        fs::write(&binary, "#!/bin/sh\nexit 3\n").unwrap();
        fs::set_permissions(&binary, Permissions::from_mode(0o644)).unwrap();
        let text = try_out(&binary);
        assert!(
            text.contains("Failed") && text.contains("ermission denied"),
            "{text}"
        );
        fs::set_permissions(&binary, Permissions::from_mode(0o755)).unwrap();
        let text = try_out(&binary);
        assert!(text.contains("Failed") && text.contains('3'), "{text}");
    }
}
