//! File system in an image file, whose bytes can be copied as after a power cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Size of the probe file system in bytes.
const TRY_BYTES: u64 = 16 * 1024 * 1024;

/// Mounted file system; unmounted on drop.
#[derive(Debug)]
pub(crate) struct Disk {
    image: PathBuf,
    mount: PathBuf,
}

/// Returns why no disk can be mounted here, if so.
pub(crate) fn unavailable_reason() -> Option<&'static str> {
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
    /// Creates an empty file system in a sparse image file.
    pub(crate) fn new(dir: &Path, name: &str, bytes: u64) -> Result<Self> {
        let image = dir.join(format!("{name}.img"));
        File::create(&image)?.set_len(bytes)?;
        run_program("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), &image])?;
        Self::mount_image(dir, name, image)
    }

    fn mount_image(dir: &Path, name: &str, image: PathBuf) -> Result<Self> {
        let mount = dir.join(name);
        fs::create_dir_all(&mount)?;
        run_program("mount", &["-o".as_ref(), "loop".as_ref(), &image, &mount])?;
        Ok(Self { image, mount })
    }

    /// Copies the bytes that reached the device and mounts the copy, as after a power cut: data
    /// only in the page cache is missing.
    pub(crate) fn copy_as_cut(&self, dir: &Path) -> Result<Self> {
        let image = dir.join("cut.img");
        run_program("cp", &["--sparse=always".as_ref(), &self.image, &image])?;
        Self::mount_image(dir, "cut", image)
    }

    /// Returns the journal directory.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.mount.join("state")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if run_program("umount", &[&self.mount]).is_err() {
            let _ = run_program("umount", &["-l".as_ref(), &self.mount]);
        }
        let _ = fs::remove_file(&self.image);
    }
}

fn run_program(program: &str, words: &[&Path]) -> Result<()> {
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
