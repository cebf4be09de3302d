//! A file system in a file, whose bytes can be copied as a power cut would leave them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Bytes of the file system that is tried.
const TRY_BYTES: u64 = 16 * 1024 * 1024;

/// A mounted file system; dropped, it is unmounted.
#[derive(Debug)]
pub(crate) struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

/// Why there can be no disk here, where that is so.
pub(crate) fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root: no file system can be mounted");
    }
    let has = |program: &str| Command::new(program).arg("-V").output().is_ok();
    if !has("mkfs.ext4") || !has("mount") {
        return Some("mkfs.ext4 or mount is not installed");
    }
    let works =
        tempfile::tempdir().is_ok_and(|dir| Disk::new(dir.path(), "try", TRY_BYTES).is_ok());
    (!works).then_some("no loop device can be mounted")
}

impl Disk {
    /// Makes an empty one in a directory; the file that holds it is sparse.
    pub(crate) fn new(dir: &Path, name: &str, bytes: u64) -> Result<Self> {
        let image = dir.join(format!("{name}.img"));
        File::create(&image)?.set_len(bytes)?;
        call("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), &image])?;
        Self::mounted(dir, name, image)
    }

    fn mounted(dir: &Path, name: &str, image: PathBuf) -> Result<Self> {
        let mount = dir.join(name);
        fs::create_dir_all(&mount)?;
        call("mount", &["-o".as_ref(), "loop".as_ref(), &image, &mount])?;
        Ok(Self { image, mount })
    }

    /// Copies what reached the device up to now and mounts the copy, as after a power cut: what
    /// is only in the cache of this file system is not in it.
    pub(crate) fn cut(&self, dir: &Path) -> Result<Self> {
        let image = dir.join("cut.img");
        call("cp", &["--sparse=always".as_ref(), &self.image, &image])?;
        Self::mounted(dir, "cut", image)
    }

    /// Where the journal is.
    pub(crate) fn state(&self) -> PathBuf {
        self.mount.join("state")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if call("umount", &[&self.mount]).is_err() {
            let _ = call("umount", &["-l".as_ref(), &self.mount]);
        }
        let _ = fs::remove_file(&self.image);
    }
}

fn call(program: &str, words: &[&Path]) -> Result<()> {
    let output = Command::new(program)
        .args(words)
        .output()
        .with_context(|| program.to_owned())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{program}` failed: {}",
        said.trim()
    );
    Ok(())
}
