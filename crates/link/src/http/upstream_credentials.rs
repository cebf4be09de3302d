//! Credentials for upstream servers, read for every request.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use bowline_core::BoxFuture;
pub use http::{HeaderName, HeaderValue};
use thiserror::Error;

/// Provides credential headers. Read for every request, so a changed secret takes effect at
/// once.
pub trait UpstreamCredentials: Send + Sync {
    /// Returns the current headers.
    ///
    /// # Errors
    /// A secret is unreadable; the request is not sent.
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError>;

    /// Refreshes the credentials at the source after a refusal. The next call of
    /// `headers` returns the new values, if changed.
    fn refresh(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns a digest of the source: equal digests mean equal credentials, although the values
    /// may change over time.
    fn digest(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        if let Ok(headers) = self.headers() {
            headers.hash(&mut mixer);
        }
        mixer.finish()
    }
}

/// A secret is unreadable. Names the secret, never the value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the secret `{name}` cannot be read: {reason}")]
pub struct CredentialError {
    /// Name of the secret.
    pub name: String,
    /// Reason.
    pub reason: String,
}

/// No credentials.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredentials;

impl UpstreamCredentials for NoCredentials {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        Ok(Vec::new())
    }
}

/// Hides the secrets.
impl fmt::Debug for dyn UpstreamCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}
