//! Why what a peer said cannot be read.

use thiserror::Error;

/// Why a frame is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// It is no JSON object.
    #[error("a frame is one JSON object")]
    NoObject,
    /// It is shorter than what it says that it is, or of no known kind.
    #[error("a frame is cut off or of no known kind")]
    Binary,
    /// It does not say what it is.
    #[error("a frame says its `kind`")]
    NoKind,
    /// It holds more values than a message may.
    #[error("a message holds too many values")]
    TooManyValues,
    /// A member is missing or is not what it must be.
    #[error("`{0}` is missing or is not what it must be")]
    Member(&'static str),
}
