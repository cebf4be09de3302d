//! Parse errors of frames.

use thiserror::Error;

/// Why a frame is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// Not a JSON object.
    #[error("a frame is one JSON object")]
    NoObject,
    /// Truncated, or of unknown kind.
    #[error("a frame is cut off or of no known kind")]
    Binary,
    /// The kind is missing.
    #[error("a frame says its `kind`")]
    NoKind,
    /// Too many values.
    #[error("a message holds too many values")]
    TooManyValues,
    /// A member is missing or invalid.
    #[error("`{0}` is missing or is not what it must be")]
    Member(&'static str),
}
