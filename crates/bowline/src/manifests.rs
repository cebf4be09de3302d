//! Manifests of servers, stored in files of the state directory across restarts.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::sync::lock;
use bowline_host::catalog::PerList;
use bowline_host::manifest::{ManifestStore, ServerManifest};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use bowline_config::state::{self, StateDir, private_file};

/// Maximum size of a manifest file.
const MANIFEST_BYTES_MAX: u64 = 96 * 1024 * 1024;

/// Version of the file format.
const VERSION: u32 = 1;

/// Stores each manifest in `manifests/NAME.json` of the state directory.
#[derive(Clone, Debug)]
pub struct FileManifests(Arc<ManifestDirectory>);

#[derive(Debug)]
struct ManifestDirectory {
    directory: PathBuf,
    queue: Mutex<ManifestQueue>,
}

/// Queue of manifests to write: the newest of each server, or `None` to remove the file.
#[derive(Debug, Default)]
struct ManifestQueue {
    pending: BTreeMap<Arc<str>, Option<PendingManifest>>,
    /// Whether a writer is running.
    is_writing: bool,
}

#[derive(Debug)]
struct PendingManifest {
    digest: String,
    manifest: ServerManifest,
}

/// One manifest file. Server JSON is stored byte for byte as base64 strings.
#[derive(Serialize, Deserialize)]
struct ManifestRecord {
    v: u32,
    server: String,
    digest: String,
    initialize: String,
    tools: Option<Vec<String>>,
    prompts: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    templates: Option<Vec<String>>,
}

impl FileManifests {
    /// Opens the directory inside `state`, creating it when missing.
    ///
    /// # Errors
    /// The directory belongs to another user, is accessible to others, or is no directory.
    pub fn open(state: &StateDir) -> Result<Self, state::StateError> {
        let directory = state.open_subdirectory("manifests")?;
        let queue = Mutex::default();
        Ok(Self(Arc::new(ManifestDirectory { directory, queue })))
    }
}

impl ManifestStore for FileManifests {
    fn load(&self, server: &str, digest: &str) -> Option<ServerManifest> {
        let path = private_file::server_file_path(&self.0.directory, server)?;
        let bytes = match private_file::read_private(&path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes?,
            Err(error) => {
                let error = &error as &dyn Error;
                tracing::warn!(server, error, "cannot read stored manifest");
                return None;
            }
        };
        let Some(record) = ManifestRecord::decode(&bytes, server) else {
            let path = path.display();
            tracing::warn!(server, %path, "stored manifest is damaged and is ignored");
            return None;
        };
        // A different program or different arguments: valid, but not for this server spec.
        if record.digest != digest {
            return None;
        }
        record.to_manifest()
    }

    fn save(&self, server: &str, digest: &str, manifest: ServerManifest) {
        let digest = digest.to_owned();
        self.enqueue(server, Some(PendingManifest { digest, manifest }));
    }

    fn forget(&self, server: &str) {
        self.enqueue(server, None);
    }
}

impl FileManifests {
    fn enqueue(&self, server: &str, pending: Option<PendingManifest>) {
        let mut queue = lock(&self.0.queue);
        queue.pending.insert(server.into(), pending);
        if !std::mem::replace(&mut queue.is_writing, true) {
            let store = Arc::clone(&self.0);
            // Disk writes may be slow and must not block the caller.
            tokio::task::spawn_blocking(move || store.write_queued());
        }
    }
}

impl ManifestDirectory {
    /// Writes queued manifests until the queue is empty.
    fn write_queued(&self) {
        while let Some((server, pending)) = self.next_pending() {
            let Some(path) = private_file::server_file_path(&self.directory, &server) else {
                continue;
            };
            let Some(pending) = pending else {
                remove_manifest_file(&server, &path);
                continue;
            };
            let record = ManifestRecord::new(&server, &pending.digest, &pending.manifest);
            let Ok(mut bytes) = serde_json::to_vec(&record) else {
                continue;
            };
            bytes.push(b'\n');
            if bytes.len() as u64 > MANIFEST_BYTES_MAX {
                tracing::warn!(%server, "manifest is too large to be stored");
                continue;
            }
            if let Err(error) = private_file::replace_file(&path, &bytes) {
                let error = &error as &dyn Error;
                tracing::warn!(%server, error, "cannot store manifest");
            }
        }
    }

    fn next_pending(&self) -> Option<(Arc<str>, Option<PendingManifest>)> {
        let mut queue = lock(&self.queue);
        let next = queue.pending.pop_first();
        queue.is_writing = next.is_some();
        next
    }
}

/// Removes a manifest file, if present.
fn remove_manifest_file(server: &str, path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let error = &error as &dyn Error;
            tracing::warn!(server, error, "cannot remove stored manifest");
        }
        Ok(()) | Err(_) => {}
    }
}

impl ManifestRecord {
    fn new(server: &str, digest: &str, manifest: &ServerManifest) -> Self {
        let encode = |pages: &Option<Vec<Bytes>>| {
            let pages = pages.as_ref()?.iter();
            Some(pages.map(|page| STANDARD.encode(page)).collect())
        };
        let pages = &manifest.pages;
        Self {
            v: VERSION,
            server: server.to_owned(),
            digest: digest.to_owned(),
            initialize: STANDARD.encode(&manifest.initialize),
            tools: encode(&pages.tools),
            prompts: encode(&pages.prompts),
            resources: encode(&pages.resources),
            templates: encode(&pages.templates),
        }
    }

    /// Decodes the record of this server; `None` for any other content.
    fn decode(bytes: &[u8], server: &str) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        (record.v == VERSION && record.server == server).then_some(record)
    }

    fn to_manifest(&self) -> Option<ServerManifest> {
        let page = |text: &String| STANDARD.decode(text).ok().map(Bytes::from);
        // One undecodable page invalidates the whole manifest.
        let pages = |texts: &Option<Vec<String>>| match texts {
            Some(texts) => texts.iter().map(page).collect::<Option<Vec<_>>>().map(Some),
            None => Some(None),
        };
        Some(ServerManifest {
            initialize: page(&self.initialize)?,
            pages: PerList {
                tools: pages(&self.tools)?,
                prompts: pages(&self.prompts)?,
                resources: pages(&self.resources)?,
                templates: pages(&self.templates)?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::time::Duration;

    use super::*;

    fn sample_manifest(text: &str) -> ServerManifest {
        ServerManifest {
            // Stored byte for byte, even when the bytes are no UTF-8.
            initialize: Bytes::from_static(b"{ \"a\" : \"\xff\\u00e9\" }"),
            pages: PerList {
                tools: Some(vec![Bytes::copy_from_slice(text.as_bytes()), Bytes::new()]),
                prompts: Some(Vec::new()),
                ..PerList::default()
            },
        }
    }

    fn open_store(dir: &Path) -> FileManifests {
        let state = StateDir::open(dir.join("state")).unwrap();
        FileManifests::open(&state).unwrap()
    }

    fn manifest_path(dir: &Path) -> PathBuf {
        dir.join("state/manifests/s.json")
    }

    /// Saves and polls until the write queue is empty: the writer thread tells nobody.
    async fn save_and_flush(store: &FileManifests, digest: &str, manifest: ServerManifest) {
        store.save("s", digest, manifest);
        let flush = async {
            while lock(&store.0.queue).is_writing {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let flushed = tokio::time::timeout(Duration::from_secs(60), flush).await;
        flushed.expect("the write queue is empty");
    }

    #[tokio::test]
    async fn saved_manifest_loads_for_same_digest_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = open_store(dir.path());
        assert_eq!(store.load("s", "d"), None);
        save_and_flush(&store, "d", sample_manifest("{\"tools\": [ ]}")).await;
        assert_eq!(
            open_store(dir.path()).load("s", "d"),
            Some(sample_manifest("{\"tools\": [ ]}"))
        );
        assert_eq!(store.load("s", "e"), None, "another program");
        assert_eq!(store.load("t", "d"), None);
        save_and_flush(&store, "d", sample_manifest("newer")).await;
        assert_eq!(store.load("s", "d"), Some(sample_manifest("newer")));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&manifest_path(dir.path())), 0o600);
        assert_eq!(mode(&dir.path().join("state/manifests")), 0o700);
        let left = std::fs::read_dir(dir.path().join("state/manifests")).unwrap();
        assert_eq!(left.count(), 1, "no drafts stay behind");
    }

    #[tokio::test]
    async fn damaged_manifest_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let store = open_store(dir.path());
        save_and_flush(&store, "d", sample_manifest("x")).await;
        let whole = std::fs::read(manifest_path(dir.path())).unwrap();
        let put = |bytes: &[u8]| std::fs::write(manifest_path(dir.path()), bytes).unwrap();
        let other = String::from_utf8(whole.clone()).unwrap();
        for broken in [
            &b""[..],
            b"null",
            &whole[..whole.len() / 2],
            other
                .replace("\"server\":\"s\"", "\"server\":\"t\"")
                .as_bytes(),
            other.replace("\"v\":1", "\"v\":2").as_bytes(),
            other
                .replace("\"initialize\":\"", "\"initialize\":\"!")
                .as_bytes(),
        ] {
            put(broken);
            assert_eq!(store.load("s", "d"), None);
        }
        put(&whole);
        assert!(store.load("s", "d").is_some());
        let open_to_all = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(manifest_path(dir.path()), open_to_all).unwrap();
        assert_eq!(store.load("s", "d"), None, "anybody could have written it");
    }

    #[tokio::test]
    async fn symlinked_manifest_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open_store(dir.path());
        save_and_flush(&store, "d", sample_manifest("x")).await;
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(manifest_path(dir.path()), &elsewhere).unwrap();
        symlink(&elsewhere, manifest_path(dir.path())).unwrap();
        assert_eq!(store.load("s", "d"), None);
        let before = std::fs::read(&elsewhere).unwrap();
        save_and_flush(&store, "d", sample_manifest("y")).await;
        assert_eq!(std::fs::read(&elsewhere).unwrap(), before);
        assert_eq!(store.load("s", "d"), Some(sample_manifest("y")));
    }

    #[tokio::test]
    async fn oversized_manifest_and_bad_names_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let store = open_store(dir.path());
        save_and_flush(&store, "d", sample_manifest(&"x".repeat(97 * 1024 * 1024))).await;
        assert_eq!(store.load("s", "d"), None);
        assert!(!manifest_path(dir.path()).exists());
        assert_eq!(
            private_file::server_file_path(&store.0.directory, "../s"),
            None
        );
    }
}
