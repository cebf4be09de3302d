//! Redirects that a request does not follow.

use thiserror::Error;

use super::endpoint::EndpointError;

/// Redirects per request.
pub(super) const REDIRECTS_MAX: usize = 10;

/// Why a redirect is not followed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RedirectError {
    /// It changes the origin, which must not see the request.
    #[error("it leads to another origin")]
    Origin,
    /// Too many redirects.
    #[error("more than {REDIRECTS_MAX} times")]
    TooMany,
    /// The location is invalid.
    #[error("{0}")]
    Nowhere(#[from] EndpointError),
}
