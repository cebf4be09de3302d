//! The shim that fails calls: compiled when it is needed, loaded before the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The source of the shim.
const SOURCE: &str = include_str!("inject.c");

/// The names of the calls, in the order of their numbers in the shim.
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

/// A compiled shim.
#[derive(Debug)]
pub(crate) struct Shim {
    library: PathBuf,
}

/// What a shim does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<'a> {
    /// The call with this number fails, by this name.
    Once(&'static str, u64),
    /// That one and all later ones.
    From(&'static str, u64),
    /// Syncs of files whose names end so say that they were done.
    Unsynced(&'static str),
    /// None, but the syncs are counted, and their number is written to this file at the end.
    Counted(&'a Path),
}

impl Shim {
    /// Compiles the shim into a directory.
    pub(crate) fn build(dir: &Path) -> Result<Self> {
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

    /// The environment in which calls on the files of a directory fail.
    pub(crate) fn env(&self, dir: &Path, fault: Fault<'_>) -> Vec<(&'static str, String)> {
        let mut env = vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("ORDEAL_DIR", dir.display().to_string()),
        ];
        match fault {
            Fault::Once(kind, at) | Fault::From(kind, at) => {
                env.push(("ORDEAL_KIND", kind.to_owned()));
                env.push(("ORDEAL_AT", at.to_string()));
            }
            Fault::Unsynced(only) => {
                env.push(("ORDEAL_KIND", "nosync".to_owned()));
                env.push(("ORDEAL_ONLY", only.to_owned()));
            }
            Fault::Counted(file) => {
                env.push(("ORDEAL_KIND", "count".to_owned()));
                env.push(("ORDEAL_COUNT", file.display().to_string()));
            }
        }
        if matches!(fault, Fault::From(..)) {
            env.push(("ORDEAL_STICKY", "1".to_owned()));
        }
        env
    }
}
