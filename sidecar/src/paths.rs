//! Where the files of the shared volume are.

use std::path::PathBuf;

/// The shared volume, by default at [`crate::contract::MOUNT_PATH`].
#[derive(Debug, Clone)]
pub struct Paths {
    directory: PathBuf,
}

impl Paths {
    /// The volume mounted at `directory`.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// The waiter's binary, as the hooks run it.
    pub fn binary(&self) -> PathBuf {
        self.directory.join("bin/waiter")
    }

    /// The unix socket between hook and waiter.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("sock")
    }

    /// The release file.
    pub fn go(&self) -> PathBuf {
        self.directory.join("go")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::contract::{BINARY_PATH, GO_PATH, MOUNT_PATH, SOCKET_PATH};

    #[test]
    fn default_paths_are_those_of_the_contract() {
        let paths = Paths::new(MOUNT_PATH);
        assert_eq!(paths.binary(), Path::new(BINARY_PATH));
        assert_eq!(paths.socket(), Path::new(SOCKET_PATH));
        assert_eq!(paths.go(), Path::new(GO_PATH));
    }
}
