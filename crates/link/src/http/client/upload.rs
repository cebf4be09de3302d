//! The body of a request: here already, or still arriving.

use std::fmt;

use super::Chunks;

/// A body to be sent.
pub enum Upload<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// It arrives piece by piece, and lines of trailers may follow it. What breaks it takes the
    /// request off the wire.
    Open {
        /// The pieces.
        chunks: Box<dyn Chunks>,
        /// How long it is; where nobody knows, it goes out in chunks.
        length: Option<u64>,
    },
}

impl Upload<'_> {
    /// Whether nothing is to be sent for certain.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Open { length, .. } => matches!(length, Some(0)),
        }
    }

    /// Returns how long it is, where that is known.
    #[must_use]
    pub const fn length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Open { length, .. } => *length,
        }
    }
}

impl Default for Upload<'_> {
    fn default() -> Self {
        Self::Whole(&[])
    }
}

impl<'a> From<&'a [u8]> for Upload<'a> {
    fn from(whole: &'a [u8]) -> Self {
        Self::Whole(whole)
    }
}

/// It may hold what nobody else is to read.
impl fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("length", &self.length())
            .finish_non_exhaustive()
    }
}
