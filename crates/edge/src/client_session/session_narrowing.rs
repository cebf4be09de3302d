//! Contexts of single sessions, persisted so that a session is never wider after a restart.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_core::call::ContextSet;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_runtime::Clock;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::{AGE_MAX, ClientSession, ClientSessions};
use crate::tokens::{CONTEXTS_MAX, NAME_BYTES_MAX};
use bowline_config::state::{self, StateDir, private_file};

/// Maximum number of narrowed sessions; entries expire with their session ids.
pub(crate) const NARROWED_MAX: usize = 10_000;

/// Maximum file size: all narrowed sessions with long context names.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// File format version.
const VERSION: u32 = 1;

/// Reason for not narrowing a session; nothing has changed.
#[derive(Debug, Error)]
pub enum NarrowError {
    /// Unknown or expired session.
    #[error("there is no such session")]
    Unknown,
    /// The limit of narrowed sessions is reached.
    #[error("{NARROWED_MAX} sessions are narrowed already")]
    TooMany,
    /// The file cannot be written.
    #[error(transparent)]
    State(#[from] state::StateError),
}

/// File of narrowings, and its write lock.
#[derive(Debug, Default)]
pub(super) struct NarrowingStore {
    path: Option<PathBuf>,
    /// Serializes changes.
    writing: Mutex<()>,
}

/// Contexts by hash of the session id.
#[derive(Clone, Debug, Default)]
pub(super) struct NarrowedSessions(HashMap<[u8; 32], SessionNarrowing>);

#[derive(Clone, Debug)]
struct SessionNarrowing {
    contexts: ContextSet,
    issued_s: u64,
}

impl NarrowedSessions {
    /// Returns the contexts of a session.
    pub(super) fn contexts_for(&self, id: &str) -> Option<&ContextSet> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&hash_id(id)).map(|one| &one.contexts)
    }
}

fn hash_id(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NarrowingFile {
    v: u32,
    sessions: Vec<NarrowedSessionRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NarrowedSessionRecord {
    session_sha256: String,
    issued_s: u64,
    contexts: Vec<String>,
}

impl ClientSessions {
    /// Persists narrowings in a file of `state` and loads existing records.
    ///
    /// # Errors
    /// The file cannot be read, is accessible to other users, or is corrupt: starting without it
    /// would widen sessions.
    pub fn with_contexts_file(mut self, state: &StateDir) -> Result<Self, state::StateError> {
        let path = state.contexts_file();
        let narrowed = read_file(&path, state)?;
        self.lock_table().narrowed = narrowed;
        self.narrowing_store.path = Some(path);
        Ok(self)
    }

    /// Replaces the contexts of a session. Returns the session if in memory. Blocks on file access.
    ///
    /// # Errors
    /// Unknown session, or the file cannot be written; nothing has changed.
    pub fn narrow_session(
        &self,
        id: &str,
        contexts: &ContextSet,
        clock: &dyn Clock,
    ) -> Result<Option<Arc<ClientSession>>, NarrowError> {
        let sealed = self.open_id(id, clock).ok_or(NarrowError::Unknown)?;
        let _one = lock(&self.narrowing_store.writing);
        let mut narrowed = self.lock_table().narrowed.clone();
        let oldest = (clock.unix_ms() / 1_000).saturating_sub(AGE_MAX.as_secs());
        narrowed.0.retain(|_, one| one.issued_s >= oldest);
        narrowed.0.remove(&hash_id(id));
        if !contexts.is_empty() {
            if narrowed.0.len() >= NARROWED_MAX {
                return Err(NarrowError::TooMany);
            }
            let narrowing = SessionNarrowing {
                contexts: contexts.clone(),
                issued_s: sealed.issued_s,
            };
            narrowed.0.insert(hash_id(id), narrowing);
        }
        if let Some(path) = &self.narrowing_store.path {
            private_file::replace_file(path, &encode_file(&narrowed)?)?;
        }
        let mut table = self.lock_table();
        table.narrowed = narrowed;
        let session = table.live.get(id).cloned();
        if let Some(session) = &session {
            session.apply_contexts(&table.contexts_for(id));
        }
        Ok(session)
    }

    /// Returns the id of the session's token, empty without a token; `None` for an unknown session.
    #[must_use]
    pub fn session_credential(&self, id: &str, clock: &dyn Clock) -> Option<String> {
        self.open_id(id, clock).map(|sealed| sealed.credential)
    }

    /// Replaces the contexts of all sessions, including future sessions, in addition to the
    /// contexts of single sessions.
    pub fn narrow_all_sessions(&self, contexts: &ContextSet) {
        let mut table = self.lock_table();
        table.global_contexts = contexts.clone();
        for (id, session) in &table.live {
            session.apply_contexts(&table.contexts_for(id));
        }
        drop(table);
        // Streams without a session reconnect with the new permissions.
        self.listeners.finish_all();
    }
}

fn encode_file(narrowed: &NarrowedSessions) -> Result<Vec<u8>, state::StateError> {
    let sessions = narrowed
        .0
        .iter()
        .map(|(digest, one)| NarrowedSessionRecord {
            session_sha256: to_hex(digest),
            issued_s: one.issued_s,
            contexts: context_names(&one.contexts),
        });
    let mut sessions: Vec<_> = sessions.collect();
    sessions.sort_by(|a, b| a.session_sha256.cmp(&b.session_sha256));
    let record = NarrowingFile {
        v: VERSION,
        sessions,
    };
    state::to_json_line(&record)
}

fn context_names(contexts: &ContextSet) -> Vec<String> {
    let names = contexts.names().iter();
    names.map(|name| name.as_ref().to_owned()).collect()
}

fn read_file(path: &Path, state: &StateDir) -> Result<NarrowedSessions, state::StateError> {
    let Some(bytes) = private_file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(NarrowedSessions::default());
    };
    let corrupt = |reason: String| state::StateError::Corrupt {
        path: path.to_owned(),
        reason,
        // Without the key no session is restored, so none is restored wider.
        fix: format!(
            "restore it from a backup, or `rm {} {}`, after which every client opens its session \
             anew",
            path.display(),
            state.session_key_file().display()
        ),
    };
    let record: NarrowingFile =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if record.v != VERSION {
        return Err(corrupt(format!("its version is {}", record.v)));
    }
    let mut narrowed = NarrowedSessions::default();
    for (at, one) in record.sessions.into_iter().enumerate() {
        let named = |name: &String| !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        let good = !one.contexts.is_empty()
            && one.contexts.len() <= CONTEXTS_MAX
            && one.contexts.iter().all(named);
        let digest = state::decode_hex(&one.session_sha256).filter(|_| good);
        let narrowing = SessionNarrowing {
            contexts: ContextSet::new(one.contexts),
            issued_s: one.issued_s,
        };
        let before = digest.map(|digest| narrowed.0.insert(digest, narrowing).is_some());
        if before != Some(false) || narrowed.0.len() > NARROWED_MAX {
            return Err(corrupt(format!("session number {} is not valid", at + 1)));
        }
    }
    Ok(narrowed)
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{EndpointScope, Principal, Role};
    use bowline_core::client_handle::ClientCapabilities;
    use bowline_testkit::ManualClock;
    use bowline_wire::mcp::Revision;

    use super::*;
    use crate::client_session::SessionTerms;

    /// Time of the first narrowing, in seconds since 1970.
    const START_S: u64 = 1_000_000;

    fn open_session(sessions: &ClientSessions, clock: &ManualClock) -> Arc<str> {
        let terms = SessionTerms {
            principal: Arc::new(Principal::new("ann", Role::None)),
            scope: EndpointScope::All,
            revision: Revision::LATEST_LEGACY,
            capabilities: ClientCapabilities::default(),
        };
        sessions.open_session(terms, clock).unwrap().0
    }

    #[test]
    fn narrowings_are_bounded_and_expire() {
        let sessions = ClientSessions::new(&[1; 32]);
        let start = ManualClock::from_unix_ms(START_S * 1_000);
        let night = ContextSet::new(["night"]);
        let id = open_session(&sessions, &start);
        let session = sessions
            .narrow_session(&id, &night, &start)
            .unwrap()
            .unwrap();
        assert_eq!(session.current_principal().contexts, night);
        let full = (1..NARROWED_MAX).map(|nth| {
            let narrowing = SessionNarrowing {
                contexts: night.clone(),
                issued_s: START_S + 1,
            };
            (hash_id(&nth.to_string()), narrowing)
        });
        sessions.lock_table().narrowed.0.extend(full);
        let other = open_session(&sessions, &start);
        let refused = sessions.narrow_session(&other, &night, &start);
        assert!(matches!(refused, Err(NarrowError::TooMany)), "{refused:?}");
        // Changing or clearing contexts of a narrowed session needs no further entry.
        let day = ContextSet::new(["day"]);
        assert!(sessions.narrow_session(&id, &day, &start).is_ok());
        assert!(
            sessions
                .narrow_session(&other, &ContextSet::default(), &start)
                .is_ok()
        );
        // The first id has expired, so its narrowing is dropped.
        let later = ManualClock::from_unix_ms((START_S + AGE_MAX.as_secs() + 1) * 1_000);
        let young = open_session(&sessions, &later);
        assert!(sessions.narrow_session(&young, &night, &later).is_ok());
        assert_eq!(sessions.lock_table().narrowed.0.len(), NARROWED_MAX);
        let gone = sessions.narrow_session(&id, &ContextSet::default(), &later);
        assert!(matches!(gone, Err(NarrowError::Unknown)), "{gone:?}");
    }
}
