//! Opens what remembers queued calls.

use std::sync::Arc;

use bowline_journal::sqlite::{OpenError, Sqlite};
use bowline_journal::{Journal, Memory};

use crate::config::Engine;
use crate::state::State;

/// The file of the state directory that holds it.
const FILE: &str = "state.db";

/// Opens the journal that the config names. The state directory is ours alone by then.
pub(super) fn open(engine: Engine, state: &State) -> Result<Arc<dyn Journal>, OpenError> {
    match engine {
        Engine::Memory => Ok(Arc::new(Memory::default())),
        Engine::Sqlite => {
            let path = state.path().join(FILE);
            Ok(Arc::new(Sqlite::open(&path)?))
        }
    }
}

/// Returns what to do about a journal that cannot be opened.
#[must_use]
pub fn fix(error: &OpenError) -> Option<String> {
    match error {
        OpenError::Exposed { path, wanted, .. } => {
            Some(format!("chmod {wanted:o} {}", path.display()))
        }
        OpenError::Network { .. } => {
            Some("keep the state on a local disk: bowline up --state DIR".to_owned())
        }
        OpenError::InUse(_) => {
            Some("stop the other gateway, or give this one its own --state DIR".to_owned())
        }
        OpenError::Newer { .. } => {
            Some("start the version that wrote it, or give this one its own --state DIR".to_owned())
        }
        OpenError::Damaged { path, .. } | OpenError::Sqlite { path, .. } => {
            let path = path.display();
            Some(format!(
                "mv {path} {path}.damaged starts with an empty outbox; calls that waited in it \
                 are not sent then"
            ))
        }
        OpenError::Io { .. }
        | OpenError::Symlink(_)
        | OpenError::NotFile(_)
        | OpenError::Foreign(_)
        | OpenError::Library { .. } => None,
    }
}
