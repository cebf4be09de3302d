//! What single sessions are narrowed by, kept in a file: a session that comes back after a restart
//! must not be wider than it was.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_core::call::Contexts;
use bowline_core::sync::lock;
use bowline_host::ports::Clock;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::{AGE_MAX, Session, Sessions};
use crate::state::{self, State, file};
use crate::tokens::{CONTEXTS_MAX, NAME_BYTES_MAX};

/// Sessions that can be narrowed at the same time; they are forgotten with their ids.
pub const NARROWED_MAX: usize = 10_000;

/// The largest file: as many sessions as can be narrowed, with long names.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Version of the file.
const VERSION: u32 = 1;

/// Why a session was not narrowed; then nothing has changed.
#[derive(Debug, Error)]
pub enum NarrowError {
    /// No such session can be used.
    #[error("there is no such session")]
    Unknown,
    /// There are as many as there may be.
    #[error("{NARROWED_MAX} sessions are narrowed already")]
    TooMany,
    /// It could not be kept.
    #[error(transparent)]
    State(#[from] state::Error),
}

/// Where it is kept, and who writes.
#[derive(Debug, Default)]
pub(super) struct Narrowings {
    path: Option<PathBuf>,
    /// Lets one change it at a time.
    writing: Mutex<()>,
}

/// What sessions are narrowed by, by the hash of their ids.
#[derive(Clone, Debug, Default)]
pub(super) struct Narrowed(HashMap<[u8; 32], Narrowing>);

#[derive(Clone, Debug)]
struct Narrowing {
    contexts: Contexts,
    issued_s: u64,
}

impl Narrowed {
    /// Returns what the session of this id is narrowed by.
    pub(super) fn of(&self, id: &str) -> Option<&Contexts> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&digest(id)).map(|one| &one.contexts)
    }
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    sessions: Vec<One>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    session_sha256: String,
    issued_s: u64,
    contexts: Vec<String>,
}

impl Sessions {
    /// Keeps what sessions are narrowed by in a file of `state`, and goes on with what it says.
    ///
    /// # Errors
    /// When the file cannot be read, is open to others or does not hold what it should: nobody
    /// knows what sessions must not see.
    pub fn keep_contexts(mut self, state: &State) -> Result<Self, state::Error> {
        let path = state.contexts_file();
        let narrowed = read(&path, state)?;
        self.table().narrowed = narrowed;
        self.narrowings.path = Some(path);
        Ok(self)
    }

    /// Narrows the session of this id by these rules, and by no others that were set before.
    /// Returns the session if it is in memory. Writes a file, so it may block.
    ///
    /// # Errors
    /// When there is no such session, or it cannot be kept; then nothing has changed.
    pub fn narrow(
        &self,
        id: &str,
        contexts: &Contexts,
        clock: &dyn Clock,
    ) -> Result<Option<Arc<Session>>, NarrowError> {
        let sealed = self.unseal(id, clock).ok_or(NarrowError::Unknown)?;
        let _one = lock(&self.narrowings.writing);
        let mut narrowed = self.table().narrowed.clone();
        let oldest = (clock.unix_ms() / 1_000).saturating_sub(AGE_MAX.as_secs());
        narrowed.0.retain(|_, one| one.issued_s >= oldest);
        narrowed.0.remove(&digest(id));
        if !contexts.is_empty() {
            if narrowed.0.len() >= NARROWED_MAX {
                return Err(NarrowError::TooMany);
            }
            let narrowing = Narrowing {
                contexts: contexts.clone(),
                issued_s: sealed.issued_s,
            };
            narrowed.0.insert(digest(id), narrowing);
        }
        if let Some(path) = &self.narrowings.path {
            file::replace(path, &write(&narrowed)?)?;
        }
        let mut table = self.table();
        table.narrowed = narrowed;
        let session = table.live.get(id).cloned();
        if let Some(session) = &session {
            session.narrow(&table.contexts_of(id));
        }
        Ok(session)
    }

    /// Returns the id of the token that the session of this id was opened with, empty where it was
    /// none; nothing where there is no such session.
    #[must_use]
    pub fn credential_of(&self, id: &str, clock: &dyn Clock) -> Option<String> {
        self.unseal(id, clock).map(|sealed| sealed.credential)
    }

    /// Narrows all sessions by these rules, those to come included, beside what was set for
    /// single ones; what was set for all before counts no more.
    pub fn narrow_all(&self, contexts: &Contexts) {
        let mut table = self.table();
        table.for_all = contexts.clone();
        for (id, session) in &table.live {
            session.narrow(&table.contexts_of(id));
        }
        drop(table);
        // Streams without a session hear what those may hear who opened them.
        self.listeners.renew();
    }
}

fn write(narrowed: &Narrowed) -> Result<Vec<u8>, state::Error> {
    let sessions = narrowed.0.iter().map(|(digest, one)| One {
        session_sha256: state::hex(digest),
        issued_s: one.issued_s,
        contexts: names(&one.contexts),
    });
    let mut sessions: Vec<_> = sessions.collect();
    sessions.sort_by(|a, b| a.session_sha256.cmp(&b.session_sha256));
    let record = Record {
        v: VERSION,
        sessions,
    };
    state::json(&record)
}

fn names(contexts: &Contexts) -> Vec<String> {
    let names = contexts.names().iter();
    names.map(|name| name.as_ref().to_owned()).collect()
}

fn read(path: &Path, state: &State) -> Result<Narrowed, state::Error> {
    let Some(bytes) = file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(Narrowed::default());
    };
    let corrupt = |reason: String| state::Error::Corrupt {
        path: path.to_owned(),
        reason,
        // Without the key no session comes back, so none comes back wider.
        fix: format!(
            "restore it from a backup, or `rm {} {}`, after which every client opens its session \
             anew",
            path.display(),
            state.session_key_file().display()
        ),
    };
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if record.v != VERSION {
        return Err(corrupt(format!("its version is {}", record.v)));
    }
    let mut narrowed = Narrowed::default();
    for (at, one) in record.sessions.into_iter().enumerate() {
        let named = |name: &String| !name.is_empty() && name.len() <= NAME_BYTES_MAX;
        let good = !one.contexts.is_empty()
            && one.contexts.len() <= CONTEXTS_MAX
            && one.contexts.iter().all(named);
        let digest = state::unhex(&one.session_sha256).filter(|_| good);
        let narrowing = Narrowing {
            contexts: Contexts::new(one.contexts),
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
    use bowline_core::call::{Principal, Role, Scope};
    use bowline_core::caller::Abilities;
    use bowline_core::time::Now;
    use bowline_wire::mcp::Revision;

    use super::*;
    use crate::edge::session::Terms;

    /// A clock that stands, so many seconds after 1970.
    #[derive(Debug)]
    struct At(u64);

    impl Clock for At {
        fn now(&self) -> Now {
            Now(0)
        }

        fn instant(&self, _: Now) -> tokio::time::Instant {
            unreachable!("no session sets a timer")
        }

        fn unix_ms(&self) -> u64 {
            self.0 * 1_000
        }
    }

    fn open(sessions: &Sessions, clock: &At) -> Arc<str> {
        let terms = Terms {
            principal: Arc::new(Principal::new("ann", Role::None)),
            scope: Scope::All,
            revision: Revision::LATEST_LEGACY,
            abilities: Abilities::default(),
        };
        sessions.open(terms, clock).unwrap().0
    }

    #[test]
    fn what_narrows_sessions_is_bounded_and_goes_with_their_ids() {
        let sessions = Sessions::new(&[1; 32]);
        let start = At(1_000_000);
        let night = Contexts::new(["night"]);
        let id = open(&sessions, &start);
        let session = sessions.narrow(&id, &night, &start).unwrap().unwrap();
        assert_eq!(session.asker().contexts, night);
        let full = (1..NARROWED_MAX).map(|nth| {
            let narrowing = Narrowing {
                contexts: night.clone(),
                issued_s: start.0 + 1,
            };
            (digest(&nth.to_string()), narrowing)
        });
        sessions.table().narrowed.0.extend(full);
        let other = open(&sessions, &start);
        let refused = sessions.narrow(&other, &night, &start);
        assert!(matches!(refused, Err(NarrowError::TooMany)), "{refused:?}");
        // To be narrowed otherwise, or no more, is not one more.
        let day = Contexts::new(["day"]);
        assert!(sessions.narrow(&id, &day, &start).is_ok());
        assert!(
            sessions
                .narrow(&other, &Contexts::default(), &start)
                .is_ok()
        );
        // The first id is too old to be used now, so nobody need know what narrowed it.
        let later = At(start.0 + AGE_MAX.as_secs() + 1);
        let young = open(&sessions, &later);
        assert!(sessions.narrow(&young, &night, &later).is_ok());
        assert_eq!(sessions.table().narrowed.0.len(), NARROWED_MAX);
        let gone = sessions.narrow(&id, &Contexts::default(), &later);
        assert!(matches!(gone, Err(NarrowError::Unknown)), "{gone:?}");
    }
}
