//! Files of the workspace that tests read.

use std::path::Path;
#[cfg(feature = "schema")]
use std::path::PathBuf;

/// Returns the root of the workspace.
#[must_use]
pub fn workspace_root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).unwrap()
}

/// Returns the first file of this relative path in the workspace or in a directory above it.
#[cfg(feature = "schema")]
pub(crate) fn find_beside_workspace(path: &Path) -> Option<PathBuf> {
    let mut candidates = workspace_root().ancestors().map(|base| base.join(path));
    candidates.find(|file| file.is_file())
}
