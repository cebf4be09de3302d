//! Credentials of this gateway for a peer.

use std::fmt;
use std::sync::Arc;

/// Source of a credential; read for every connection.
#[derive(Clone)]
pub struct CredentialSource(Arc<dyn Fn() -> std::io::Result<String> + Send + Sync>);

impl CredentialSource {
    /// Creates a source with a fixed token.
    #[must_use]
    pub fn from_token(token: &str) -> Self {
        let token = token.to_owned();
        Self(Arc::new(move || Ok(token.clone())))
    }

    /// Creates a source read for every connection, such as a rotating file.
    #[must_use]
    pub fn from_fn(read: impl Fn() -> std::io::Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the credential.
    ///
    /// # Errors
    /// The credential cannot be read now.
    pub fn read(&self) -> std::io::Result<String> {
        (self.0)()
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialSource")
    }
}
