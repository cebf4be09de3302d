//! What servers offered, kept in files of the state directory between lives of the gateway.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_core::sync::lock;
use bowline_host::catalog::PerList;
use bowline_host::manifest::{Manifest, Manifests};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::state::{self, State, file};

/// The largest file that is written or read.
const MANIFEST_BYTES_MAX: u64 = 96 * 1024 * 1024;

/// Version of the files.
const VERSION: u32 = 1;

/// Keeps each manifest in `manifests/NAME.json` of the state directory.
#[derive(Clone, Debug)]
pub struct FileManifests(Arc<Store>);

#[derive(Debug)]
struct Store {
    directory: PathBuf,
    queue: Mutex<Queue>,
}

/// Manifests that wait to be written; of each server the newest, or nothing where its file goes.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Arc<str>, Option<Waiting>>,
    /// Whether somebody is writing.
    writing: bool,
}

#[derive(Debug)]
struct Waiting {
    digest: String,
    manifest: Manifest,
}

/// One file. What servers wrote is kept byte for byte, so it is no part of this JSON.
#[derive(Serialize, Deserialize)]
struct Record {
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
    /// Opens the directory inside `state`, making it when it is missing.
    ///
    /// # Errors
    /// When it belongs to somebody else, is open to others, or is none.
    pub fn open(state: &State) -> Result<Self, state::Error> {
        let directory = state.directory("manifests")?;
        let queue = Mutex::default();
        Ok(Self(Arc::new(Store { directory, queue })))
    }
}

impl Manifests for FileManifests {
    fn load(&self, server: &str, digest: &str) -> Option<Manifest> {
        let path = file::of_server(&self.0.directory, server)?;
        let bytes = match file::read_private(&path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes?,
            Err(error) => {
                let error = &error as &dyn Error;
                tracing::warn!(server, error, "what it offered last time cannot be read");
                return None;
            }
        };
        let Some(record) = Record::read(&bytes, server) else {
            let path = path.display();
            tracing::warn!(server, %path, "does not hold what it should and is left out");
            return None;
        };
        // Another program, or other arguments: no fault, but no news of this server either.
        if record.digest != digest {
            return None;
        }
        record.manifest()
    }

    fn save(&self, server: &str, digest: &str, manifest: Manifest) {
        let digest = digest.to_owned();
        self.put(server, Some(Waiting { digest, manifest }));
    }

    fn forget(&self, server: &str) {
        self.put(server, None);
    }
}

impl FileManifests {
    fn put(&self, server: &str, waiting: Option<Waiting>) {
        let mut queue = lock(&self.0.queue);
        queue.waiting.insert(server.into(), waiting);
        if !std::mem::replace(&mut queue.writing, true) {
            let store = Arc::clone(&self.0);
            // The disk may be slow, and whoever saves must go on.
            tokio::task::spawn_blocking(move || store.write());
        }
    }
}

impl Store {
    /// Writes what waits until nothing does.
    fn write(&self) {
        while let Some((server, waiting)) = self.next() {
            let Some(path) = file::of_server(&self.directory, &server) else {
                continue;
            };
            let Some(waiting) = waiting else {
                forget(&server, &path);
                continue;
            };
            let record = Record::new(&server, &waiting.digest, &waiting.manifest);
            let Ok(mut bytes) = serde_json::to_vec(&record) else {
                continue;
            };
            bytes.push(b'\n');
            if bytes.len() as u64 > MANIFEST_BYTES_MAX {
                tracing::warn!(%server, "offers too much to be kept for the next start");
                continue;
            }
            if let Err(error) = file::replace(&path, &bytes) {
                let error = &error as &dyn Error;
                tracing::warn!(%server, error, "what it offers cannot be kept");
            }
        }
    }

    fn next(&self) -> Option<(Arc<str>, Option<Waiting>)> {
        let mut queue = lock(&self.queue);
        let next = queue.waiting.pop_first();
        queue.writing = next.is_some();
        next
    }
}

/// Removes a file that may not be there.
fn forget(server: &str, path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let error = &error as &dyn Error;
            tracing::warn!(server, error, "what it offered cannot be forgotten");
        }
        Ok(()) | Err(_) => {}
    }
}

impl Record {
    fn new(server: &str, digest: &str, manifest: &Manifest) -> Self {
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

    /// Reads a record of that server; none where it is not one.
    fn read(bytes: &[u8], server: &str) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        (record.v == VERSION && record.server == server).then_some(record)
    }

    fn manifest(&self) -> Option<Manifest> {
        let page = |text: &String| STANDARD.decode(text).ok().map(Bytes::from);
        // Without an answer among them, a broken page makes the whole worthless.
        let pages = |texts: &Option<Vec<String>>| match texts {
            Some(texts) => texts.iter().map(page).collect::<Option<Vec<_>>>().map(Some),
            None => Some(None),
        };
        Some(Manifest {
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

    use super::*;

    fn manifest(text: &str) -> Manifest {
        Manifest {
            // Kept byte for byte, whether it is text or not.
            initialize: Bytes::from_static(b"{ \"a\" : \"\xff\\u00e9\" }"),
            pages: PerList {
                tools: Some(vec![Bytes::copy_from_slice(text.as_bytes()), Bytes::new()]),
                prompts: Some(Vec::new()),
                ..PerList::default()
            },
        }
    }

    fn open(dir: &Path) -> FileManifests {
        let state = State::open(dir.join("state")).unwrap();
        FileManifests::open(&state).unwrap()
    }

    fn file(dir: &Path) -> PathBuf {
        dir.join("state/manifests/s.json")
    }

    /// Saves, and waits until nothing waits to be written.
    async fn save(store: &FileManifests, digest: &str, manifest: Manifest) {
        store.save("s", digest, manifest);
        while lock(&store.0.queue).writing {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_is_kept_comes_back_byte_for_byte_under_the_same_digest_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        assert_eq!(store.load("s", "d"), None);
        save(&store, "d", manifest("{\"tools\": [ ]}")).await;
        assert_eq!(
            open(dir.path()).load("s", "d"),
            Some(manifest("{\"tools\": [ ]}"))
        );
        assert_eq!(store.load("s", "e"), None, "another program");
        assert_eq!(store.load("t", "d"), None);
        save(&store, "d", manifest("newer")).await;
        assert_eq!(store.load("s", "d"), Some(manifest("newer")));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&file(dir.path())), 0o600);
        assert_eq!(mode(&dir.path().join("state/manifests")), 0o700);
        let left = std::fs::read_dir(dir.path().join("state/manifests")).unwrap();
        assert_eq!(left.count(), 1, "no drafts stay behind");
    }

    #[tokio::test]
    async fn a_file_that_is_not_ours_or_not_whole_is_as_good_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        save(&store, "d", manifest("x")).await;
        let whole = std::fs::read(file(dir.path())).unwrap();
        let put = |bytes: &[u8]| std::fs::write(file(dir.path()), bytes).unwrap();
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
        std::fs::set_permissions(file(dir.path()), open_to_all).unwrap();
        assert_eq!(store.load("s", "d"), None, "anybody could have written it");
    }

    #[tokio::test]
    async fn a_link_in_place_of_a_file_is_neither_read_nor_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        save(&store, "d", manifest("x")).await;
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(file(dir.path()), &elsewhere).unwrap();
        symlink(&elsewhere, file(dir.path())).unwrap();
        assert_eq!(store.load("s", "d"), None);
        let before = std::fs::read(&elsewhere).unwrap();
        save(&store, "d", manifest("y")).await;
        assert_eq!(std::fs::read(&elsewhere).unwrap(), before);
        assert_eq!(store.load("s", "d"), Some(manifest("y")));
    }

    #[tokio::test]
    async fn what_is_too_large_is_not_kept_and_a_name_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        save(&store, "d", manifest(&"x".repeat(97 * 1024 * 1024))).await;
        assert_eq!(store.load("s", "d"), None);
        assert!(!file(dir.path()).exists());
        assert_eq!(file::of_server(&store.0.directory, "../s"), None);
    }
}
