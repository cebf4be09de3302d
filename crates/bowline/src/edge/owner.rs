//! The owner's token: compared at the door, and replaced while the gateway runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use bowline_core::call::{Principal, Role};
use bowline_core::sync::lock;

use super::door::{Proven, Token};
use crate::state;
use crate::tokens::Issued;

/// Tells those about a new token who must keep it out of logs and results.
type Learn = Box<dyn Fn(&str) + Send + Sync>;

/// The token that counts now, and how it is replaced.
pub struct OwnerToken {
    owner: Arc<Principal>,
    current: ArcSwap<Current>,
    rotation: Option<Rotation>,
}

struct Current {
    token: Token,
    issued: Arc<Issued>,
}

struct Rotation {
    /// Where the token is kept.
    file: PathBuf,
    learn: Learn,
    /// Held while the token is replaced, so that the file has the one that counts.
    turn: Mutex<()>,
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnerToken(…)")
    }
}

/// Why the token was not replaced; the old one counts.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// Nobody keeps it in a file.
    #[error("the owner's token of this gateway is kept nowhere, so it cannot be replaced")]
    Unkept,
    /// The file cannot be written.
    #[error(transparent)]
    State(#[from] state::Error),
}

impl OwnerToken {
    pub(super) fn new(token: &str) -> Self {
        let owner = Arc::new(Principal::new("owner", Role::Owner));
        Self {
            current: ArcSwap::from_pointee(Current::new(token, &owner)),
            owner,
            rotation: None,
        }
    }

    /// The same, kept in a file.
    pub(super) fn kept(self, file: PathBuf, learn: Learn) -> Self {
        let turn = Mutex::new(());
        Self {
            rotation: Some(Rotation { file, learn, turn }),
            ..self
        }
    }

    /// Returns the owner, where this is the token.
    pub(super) fn prove(&self, token: &[u8]) -> Option<Proven> {
        let current = self.current.load();
        current.token.is(token).then(|| Proven {
            principal: Arc::clone(&self.owner),
            token: Some(Arc::clone(&current.issued)),
        })
    }

    /// Returns where the token is kept.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.rotation.as_ref().map(|rotation| &*rotation.file)
    }

    /// Puts a new token in the place of the old one, on the disk first, and returns what the old
    /// one proved. Waits for the disk.
    ///
    /// # Errors
    /// The token is kept in no file, or the file cannot be written. The old one counts then.
    pub fn rotate(&self) -> Result<Arc<Issued>, RotateError> {
        let rotation = self.rotation.as_ref().ok_or(RotateError::Unkept)?;
        let _turn = lock(&rotation.turn);
        let text = state::new_token()?;
        // Known to all who hide it before it is anywhere.
        (rotation.learn)(text.expose());
        state::file::replace(&rotation.file, format!("{}\n", text.expose()).as_bytes())?;
        let new = Arc::new(Current::new(text.expose(), &self.owner));
        let old = self.current.swap(new);
        old.issued.end();
        Ok(Arc::clone(&old.issued))
    }
}

impl Current {
    fn new(token: &str, owner: &Arc<Principal>) -> Self {
        Self {
            token: Token::new(token),
            issued: Arc::new(Issued::of_owner(Arc::clone(owner))),
        }
    }
}
