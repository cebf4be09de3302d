//! Rotation of the owner token at runtime: on disk first, then in memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bowline_config::state;
use bowline_core::sync::lock;

use super::{CurrentToken, OwnerToken};
use crate::tokens::IssuedToken;

/// Called with a new token, for components that redact the token from logs and results.
type NewTokenHook = Box<dyn Fn(&str) + Send + Sync>;

/// File of the owner token.
pub(super) struct TokenRotation {
    /// Path of the token file.
    file: PathBuf,
    on_new_token: NewTokenHook,
    /// Held during rotation, so that the file holds the valid token.
    lock: Mutex<()>,
}

/// Reason for a failed rotation; the old token stays valid.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// No token file.
    #[error("the owner's token of this gateway is kept nowhere, so it cannot be replaced")]
    NoFile,
    /// The file cannot be written.
    #[error(transparent)]
    State(#[from] state::StateError),
}

impl OwnerToken {
    /// Keeps the token in a file.
    pub(super) fn with_file(self, file: PathBuf, hook: NewTokenHook) -> Self {
        let rotation_lock = Mutex::new(());
        Self {
            rotation: Some(TokenRotation {
                file,
                on_new_token: hook,
                lock: rotation_lock,
            }),
            ..self
        }
    }

    /// Returns the path of the token file.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.rotation.as_ref().map(|rotation| &*rotation.file)
    }

    /// Replaces the token, on disk first, and returns the record of the old token. Blocks on disk.
    ///
    /// # Errors
    /// No token file, or the file cannot be written. The old token stays valid.
    pub fn rotate(&self) -> Result<Arc<IssuedToken>, RotateError> {
        let rotation = self.rotation.as_ref().ok_or(RotateError::NoFile)?;
        let _turn = lock(&rotation.lock);
        let text = state::new_token()?;
        // Redaction starts before the token is stored.
        (rotation.on_new_token)(text.expose());
        state::private_file::replace_file(
            &rotation.file,
            format!("{}\n", text.expose()).as_bytes(),
        )?;
        let new = Arc::new(CurrentToken::new(text.expose(), &self.owner));
        let old = self.current.swap(new);
        old.issued.end_token();
        Ok(Arc::clone(&old.issued))
    }
}
