//! Byte ranges in borrowed texts.

use std::ops::Range;

/// A half-open byte range, `start..end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteSpan {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl ByteSpan {
    /// Returns the span of a range.
    #[must_use]
    pub const fn from_range(range: &Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }

    /// Returns the range of the span.
    #[must_use]
    pub const fn to_range(self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the bytes of the range; empty if out of bounds.
    #[must_use]
    pub fn slice(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the length.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Shifts the range by `by` bytes: a span inside `params` becomes a span of the message when
    /// shifted by the start of `params`.
    #[must_use]
    pub const fn shift(self, offset: usize) -> Self {
        Self {
            start: self.start.saturating_add(offset),
            end: self.end.saturating_add(offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSpan;

    #[test]
    fn span_slices_bytes_or_nothing() {
        let span = ByteSpan { start: 1, end: 3 };
        assert_eq!(span.slice(b"abcd"), b"bc");
        assert_eq!(span.slice(b"ab"), b"");
        assert_eq!(ByteSpan { start: 3, end: 1 }.slice(b"abcd"), b"");
        assert_eq!(ByteSpan { start: 3, end: 1 }.len(), 0);
    }

    #[test]
    fn shifted_span_keeps_its_length() {
        let span = ByteSpan { start: 1, end: 3 }.shift(10);
        assert_eq!(span, ByteSpan { start: 11, end: 13 });
        assert_eq!(span.len(), 2);
        assert!(!span.is_empty());
    }
}
