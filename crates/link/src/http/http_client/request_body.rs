//! Request body: buffered, or still arriving.

use std::fmt;

use super::BodyChunks;

/// A request body.
pub enum RequestBody<'a> {
    /// A buffered body.
    Whole(&'a [u8]),
    /// A body in chunks with optional trailers. An error cancels the request.
    Streaming {
        /// The chunks.
        chunks: Box<dyn BodyChunks>,
        /// Length; without a length, the body uses chunked encoding.
        length: Option<u64>,
    },
}

impl RequestBody<'_> {
    /// Whether the body is certainly empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Streaming { length, .. } => matches!(length, Some(0)),
        }
    }

    /// Returns the length, if known.
    #[must_use]
    pub const fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Streaming { length, .. } => *length,
        }
    }
}

impl Default for RequestBody<'_> {
    fn default() -> Self {
        Self::Whole(&[])
    }
}

impl<'a> From<&'a [u8]> for RequestBody<'a> {
    fn from(whole: &'a [u8]) -> Self {
        Self::Whole(whole)
    }
}

/// Shows only the length, as the body may be confidential.
impl fmt::Debug for RequestBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}
