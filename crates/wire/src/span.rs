//! A byte range in a text that somebody else owns.

/// A half-open byte range, `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Span {
    /// The bytes of this range; empty when `bytes` does not hold the whole range.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// How many bytes the range holds.
    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The same range in a text that has `by` more bytes in front: a span found inside
    /// `params` becomes a span of the message when shifted by the start of `params`.
    #[must_use]
    pub const fn shift(self, by: usize) -> Self {
        Self {
            start: self.start.saturating_add(by),
            end: self.end.saturating_add(by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Span;

    #[test]
    fn a_span_reads_its_bytes_and_nothing_when_out_of_range() {
        let span = Span { start: 1, end: 3 };
        assert_eq!(span.of(b"abcd"), b"bc");
        assert_eq!(span.of(b"ab"), b"");
        assert_eq!(Span { start: 3, end: 1 }.of(b"abcd"), b"");
        assert_eq!(Span { start: 3, end: 1 }.len(), 0);
    }

    #[test]
    fn a_shifted_span_keeps_its_length() {
        let span = Span { start: 1, end: 3 }.shift(10);
        assert_eq!(span, Span { start: 11, end: 13 });
        assert_eq!(span.len(), 2);
        assert!(!span.is_empty());
    }
}
