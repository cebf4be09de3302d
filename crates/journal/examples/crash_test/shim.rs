//! Shim for failing calls: compiled on demand and preloaded before the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Source of the shim.
const SOURCE: &str = include_str!("inject.c");

/// Names of the calls, by index in the shim.
pub(crate) const CALLS: [&str; 9] = [
    "write",
    "pwrite",
    "fsync",
    "fdatasync",
    "ftruncate",
    "rename",
    "fallocate",
    "unlink",
    "fsync of a directory",
];

/// Compiled shim.
#[derive(Debug)]
pub(crate) struct Shim {
    library: PathBuf,
}

/// Action of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimFault<'a> {
    /// Fails the call with this index, with this error.
    Once(&'static str, u64),
    /// Fails the call with this index and all later calls.
    From(&'static str, u64),
    /// Pretends to sync files whose names end with this suffix.
    Unsynced(&'static str),
    /// Counts syncs and writes the count to this file at exit.
    Counted(&'a Path),
}

impl Shim {
    /// Compiles the shim into a directory.
    pub(crate) fn compile(dir: &Path) -> Result<Self> {
        let (source, library) = (dir.join("inject.c"), dir.join("inject.so"));
        std::fs::write(&source, SOURCE)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl");
        let status = cc.status().context("there is no C compiler `cc`")?;
        ensure!(status.success(), "`cc` could not compile the shim");
        Ok(Self { library })
    }

    /// Returns the environment for failing calls on files of a directory.
    pub(crate) fn environment(
        &self,
        dir: &Path,
        fault: ShimFault<'_>,
    ) -> Vec<(&'static str, String)> {
        let mut env = vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("CRASH_TEST_DIR", dir.display().to_string()),
        ];
        match fault {
            ShimFault::Once(kind, at) | ShimFault::From(kind, at) => {
                env.push(("CRASH_TEST_KIND", kind.to_owned()));
                env.push(("CRASH_TEST_AT", at.to_string()));
            }
            ShimFault::Unsynced(only) => {
                env.push(("CRASH_TEST_KIND", "nosync".to_owned()));
                env.push(("CRASH_TEST_ONLY", only.to_owned()));
            }
            ShimFault::Counted(file) => {
                env.push(("CRASH_TEST_KIND", "count".to_owned()));
                env.push(("CRASH_TEST_COUNT", file.display().to_string()));
            }
        }
        if matches!(fault, ShimFault::From(..)) {
            env.push(("CRASH_TEST_STICKY", "1".to_owned()));
        }
        env
    }
}
