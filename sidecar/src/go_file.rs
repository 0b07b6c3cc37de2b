//! The release file: what tells a hook to go when the socket can't.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::contract::GoFile;

/// Far above what we write (about 60 bytes).
const LIMIT: u64 = 4096;

/// Writes the file so that a reader sees all of it or nothing.
///
/// # Errors
/// What the volume answers, such as no space left.
pub fn write(path: &Path, go: &GoFile) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, serde_json::to_vec(go)?)?;
    // The mains run as anybody; the umask must not keep them out.
    fs::set_permissions(&temporary, Permissions::from_mode(0o644))?;
    fs::rename(&temporary, path)
}

/// Reads the file; `None` while there is none that can be understood.
pub fn read(path: &Path) -> Option<GoFile> {
    let mut bytes = Vec::new();
    File::open(path)
        .ok()?
        .take(LIMIT)
        .read_to_end(&mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Removes the file that an earlier waiter left.
///
/// # Errors
/// What the volume answers, but not that there is no file.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ReleaseReason;

    #[test]
    fn file_is_read_back_readable_by_all_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("go");
        let go = GoFile {
            epoch: "e".to_owned(),
            reason: ReleaseReason::NoAttachment,
        };
        assert_eq!(read(&path), None);
        write(&path, &go).unwrap();
        assert_eq!(read(&path), Some(go));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o644
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path), None);
    }

    #[test]
    fn anything_else_is_no_release() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("go");
        for bad in ["", "go", "{}", "{\"epoch\":\"e\",\"reason\":\"because\"}"] {
            fs::write(&path, bad).unwrap();
            assert_eq!(read(&path), None, "{bad:?}");
        }
    }
}
