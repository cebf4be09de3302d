//! Opens the journal of queued calls.

use std::sync::Arc;

use bowline_journal::sqlite::{JournalOpenError, SqliteJournal};
use bowline_journal::{Journal, MemoryJournal};

use bowline_config::JournalEngine;
use bowline_config::state::StateDir;

/// Name of the journal file in the state directory.
const JOURNAL_FILE: &str = "state.db";

/// Opens the configured journal. The caller holds the lock of the state directory.
pub(super) fn open_journal(
    engine: JournalEngine,
    state: &StateDir,
) -> Result<Arc<dyn Journal>, JournalOpenError> {
    match engine {
        JournalEngine::Memory => Ok(Arc::new(MemoryJournal::default())),
        JournalEngine::Sqlite => {
            let path = state.path().join(JOURNAL_FILE);
            Ok(Arc::new(SqliteJournal::open(&path)?))
        }
    }
}

/// Suggests a fix for a journal that cannot be opened.
#[must_use]
pub fn suggest_fix(error: &JournalOpenError) -> Option<String> {
    match error {
        JournalOpenError::Exposed { path, wanted, .. } => {
            Some(format!("chmod {wanted:o} {}", path.display()))
        }
        JournalOpenError::Network { .. } => {
            Some("keep the state on a local disk: bowline up --state DIR".to_owned())
        }
        JournalOpenError::InUse(_) => {
            Some("stop the other gateway, or give this one its own --state DIR".to_owned())
        }
        JournalOpenError::Newer { .. } => {
            Some("start the version that wrote it, or give this one its own --state DIR".to_owned())
        }
        JournalOpenError::Damaged { path, .. } | JournalOpenError::Sqlite { path, .. } => {
            let path = path.display();
            Some(format!(
                "mv {path} {path}.damaged starts with an empty outbox; calls that waited in it \
                 are not sent then"
            ))
        }
        JournalOpenError::Io { .. }
        | JournalOpenError::Symlink(_)
        | JournalOpenError::NotFile(_)
        | JournalOpenError::Foreign(_)
        | JournalOpenError::Library { .. } => None,
    }
}
