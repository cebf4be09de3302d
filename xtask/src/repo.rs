//! Location and text files of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::process;

/// Larger files are data rather than hand-written text.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;

/// One text file of the repository.
#[derive(Debug, Clone)]
pub(crate) struct RepoFile {
    /// Path relative to the repository root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl RepoFile {
    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Returns the root of the workspace that this tool was built from.
pub(crate) fn workspace_root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("xtask has no parent directory")?;
    root.canonicalize()
        .with_context(|| format!("{} does not exist any more", root.display()))
}

/// Returns every text file that git tracks or would add.
pub(crate) fn list_text_files(root: &Path) -> Result<Vec<RepoFile>> {
    let listed = process::run_captured_in(
        root,
        "git",
        &[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
    );
    let paths = match listed {
        Ok(text) => text
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
        // An unpacked archive has no git index: walk the folder.
        Err(_) => walk_folder(root)?,
    };
    let mut files: Vec<RepoFile> = paths
        .into_iter()
        .filter_map(|path| read_text_file(root, path))
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Returns `None` for files that are binary, too large, or deleted but still in the index.
fn read_text_file(root: &Path, path: String) -> Option<RepoFile> {
    let full = root.join(&path);
    let about = fs::symlink_metadata(&full).ok()?;
    if !about.is_file() || about.len() > TEXT_BYTES_MAX {
        return None;
    }
    let text = String::from_utf8(fs::read(&full).ok()?).ok()?;
    Some(RepoFile { path, text })
}

fn walk_folder(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if name != "target" && name != ".git" {
                    todo.push(entry.path());
                }
            } else if let Ok(path) = entry.path().strip_prefix(root) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(found)
}
