//! Byte ranges of a text, and edits of a text by byte range; the rest stays unchanged.

use std::borrow::Cow;
use std::ops::Range;

use crate::string_literal;

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

/// Replacement of one range; an empty range inserts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByteEdit<'a> {
    /// The replaced range.
    pub at: ByteSpan,
    /// The replacement.
    pub with: Cow<'a, [u8]>,
}

/// A text with pending edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EditedText<'a> {
    /// The source text.
    pub source: &'a [u8],
    /// The edits, sorted and without overlap.
    pub edits: &'a [ByteEdit<'a>],
}

impl<'a> EditedText<'a> {
    /// Returns a text without edits.
    #[must_use]
    pub const fn from_source(source: &'a [u8]) -> Self {
        Self { source, edits: &[] }
    }

    /// Appends the edited text.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        let mut done = 0;
        for edit in self.edits {
            debug_assert!(done <= edit.at.start, "edits are sorted and do not overlap");
            debug_assert!(
                edit.at.start <= edit.at.end,
                "an edit does not run backwards"
            );
            debug_assert!(
                edit.at.end <= self.source.len(),
                "an edit is inside the text"
            );
            let unchanged = self.source.get(done..edit.at.start);
            out.extend_from_slice(unchanged.unwrap_or_default());
            out.extend_from_slice(&edit.with);
            done = edit.at.end;
        }
        out.extend_from_slice(self.source.get(done..).unwrap_or_default());
    }

    /// Returns the exact length of the edited text, for a single allocation.
    fn len(&self) -> usize {
        let removed: usize = self.edits.iter().map(|edit| edit.at.len()).sum();
        let inserted: usize = self.edits.iter().map(|edit| edit.with.len()).sum();
        (self.source.len() + inserted).saturating_sub(removed)
    }

    /// Returns the edited text.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

/// Pending edits: two without an allocation, as most texts need no more.
#[derive(Clone, Debug)]
pub(crate) enum EditList<'a> {
    Few {
        edits: [ByteEdit<'a>; 2],
        len: usize,
    },
    Many(Vec<ByteEdit<'a>>),
}

impl Default for EditList<'_> {
    fn default() -> Self {
        Self::Few {
            edits: [ByteEdit::default(), ByteEdit::default()],
            len: 0,
        }
    }
}

impl<'a> EditList<'a> {
    pub(crate) fn push(&mut self, edit: ByteEdit<'a>) {
        match self {
            Self::Few { edits, len } => match edits.get_mut(*len) {
                Some(slot) => {
                    *slot = edit;
                    *len += 1;
                }
                None => {
                    let mut many = Vec::with_capacity(8);
                    many.extend(edits.iter_mut().map(std::mem::take));
                    many.push(edit);
                    *self = Self::Many(many);
                }
            },
            Self::Many(edits) => edits.push(edit),
        }
    }

    pub(crate) fn as_slice(&self) -> &[ByteEdit<'a>] {
        match self {
            Self::Few { edits, len } => edits.get(..*len).unwrap_or_default(),
            Self::Many(edits) => edits,
        }
    }

    /// Sorts by position. An insertion precedes a removal at the same position, and insertions
    /// keep their order.
    pub(crate) fn sorted(&mut self) -> &[ByteEdit<'a>] {
        let edits = match self {
            Self::Few { edits, len } => edits.get_mut(..*len).unwrap_or_default(),
            Self::Many(edits) => edits,
        };
        edits.sort_by_key(|edit| (edit.at.start, edit.at.end));
        edits
    }
}

/// Returns a text with one range replaced.
#[must_use]
pub fn replace_span(source: &[u8], at: ByteSpan, with: &[u8]) -> Vec<u8> {
    let with = with.into();
    let edits = &[ByteEdit { at, with }];
    EditedText { source, edits }.to_vec()
}

/// Returns a text as a JSON string literal, including quotes.
#[must_use]
pub fn to_literal(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

/// Appends a text as a JSON string literal, including quotes.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    string_literal::write_literal(out, text.as_bytes());
}

#[cfg(test)]
mod tests;
