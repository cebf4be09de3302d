//! What proves to another machine who we are.

use std::fmt;
use std::sync::Arc;

/// What proves who we are; read for every connection.
#[derive(Clone)]
pub struct Credential(Arc<dyn Fn() -> std::io::Result<String> + Send + Sync>);

impl Credential {
    /// Returns a credential that stays the same.
    #[must_use]
    pub fn fixed(token: &str) -> Self {
        let token = token.to_owned();
        Self(Arc::new(move || Ok(token.clone())))
    }

    /// Returns a credential that is read anew for every connection: a file that rotates.
    #[must_use]
    pub fn reading(read: impl Fn() -> std::io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read now.
    pub fn read(&self) -> std::io::Result<String> {
        (self.0)()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}
