//! A connection to a hub that is made anew when it is lost.

use std::sync::Arc;
use std::time::Duration;

/// What proves who we are; read for every connection.
#[derive(Clone)]
pub struct Credential(pub(crate) Arc<dyn Fn() -> std::io::Result<String> + Send + Sync>);

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

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential")
    }
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Which of the mailboxes of its principal it uses: `PRINCIPAL#PART`; the principal's own
    /// where absent.
    pub part: Option<Arc<str>>,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
}

/// A connection to a hub. Cheap to clone; gone with its last clone.
#[derive(Clone, Debug)]
pub struct Client {
    _private: (),
}
