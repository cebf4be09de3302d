//! The owner token: authentication and rotation at runtime.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::call::{Principal, Role};
use bowline_core::sync::lock;

use super::auth::{AuthenticatedCaller, SecretToken};
use crate::tokens::IssuedToken;
use bowline_config::state;

/// Called with a new token, for components that redact the token from logs and results.
type NewTokenHook = Box<dyn Fn(&str) + Send + Sync>;

/// The current token, and its rotation.
pub struct OwnerToken {
    owner: Arc<Principal>,
    current: ArcSwap<CurrentToken>,
    rotation: Option<TokenRotation>,
}

struct CurrentToken {
    token: SecretToken,
    issued: Arc<IssuedToken>,
}

struct TokenRotation {
    /// Path of the token file.
    file: PathBuf,
    on_new_token: NewTokenHook,
    /// Held during rotation, so that the file holds the valid token.
    lock: Mutex<()>,
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(…)")
    }
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
    pub(super) fn new(token: &str) -> Self {
        let owner = Arc::new(Principal::new("owner", Role::Owner));
        Self {
            current: ArcSwap::from_pointee(CurrentToken::new(token, &owner)),
            owner,
            rotation: None,
        }
    }

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

    /// Returns the owner if the token matches.
    pub(super) fn authenticate(&self, token: &[u8]) -> Option<AuthenticatedCaller> {
        let current = self.current.load();
        current.token.matches(token).then(|| AuthenticatedCaller {
            principal: Arc::clone(&self.owner),
            token: Some(Arc::clone(&current.issued)),
        })
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

impl CurrentToken {
    fn new(token: &str, owner: &Arc<Principal>) -> Self {
        Self {
            token: SecretToken::new(token),
            issued: Arc::new(IssuedToken::for_owner(Arc::clone(owner))),
        }
    }
}
