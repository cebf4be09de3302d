//! A header of an HTTP request that only an executor can complete.

use std::sync::Arc;

/// A header with a secret known only to the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretHeader {
    /// The header name.
    pub header: Arc<str>,
    /// The text before the secret.
    pub before: Arc<str>,
    /// The name of the secret at the executor.
    pub secret: Arc<str>,
    /// The text after the secret.
    pub after: Arc<str>,
}
