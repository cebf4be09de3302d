//! What proves who we are to a server, read anew for every request.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use http::{HeaderName, HeaderValue};
use thiserror::Error;

use crate::link::BoxFuture;

/// Gives the headers that a server wants to see. It is asked for every request, so that a secret
/// that was changed takes effect at once.
pub trait Credentials: Send + Sync {
    /// Returns the headers.
    ///
    /// # Errors
    /// A secret cannot be read now; the request is not sent.
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError>;

    /// Gets them anew from where they come from, because a server refused those that it was sent.
    /// What changed, if anything did, is seen by the next look at the headers.
    fn refresh(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns a digest of what they are made from: those with the same one are the same, though
    /// what they give may change with time.
    fn digest(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        if let Ok(headers) = self.headers() {
            headers.hash(&mut mixer);
        }
        mixer.finish()
    }
}

/// Why there are no credentials; it names the secret, and never its value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the secret `{name}` cannot be read: {reason}")]
pub struct CredentialError {
    /// What was to be read.
    pub name: String,
    /// Why it was not.
    pub reason: String,
}

/// No credentials.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous;

impl Credentials for Anonymous {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        Ok(Vec::new())
    }
}

/// Whatever it holds, it is not shown.
impl fmt::Debug for dyn Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}
