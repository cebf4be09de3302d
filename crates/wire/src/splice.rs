//! Edits of a text by byte range; the rest stays unchanged.

use std::borrow::Cow;

use crate::span::ByteSpan;
use crate::string_literal;

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
mod tests {
    use super::{ByteEdit, EditedText, write_string};
    use crate::span::ByteSpan;

    fn edited(source: &str, edits: &[(usize, usize, &str)]) -> String {
        let edits: Vec<_> = edits
            .iter()
            .map(|&(start, end, with)| ByteEdit {
                at: ByteSpan { start, end },
                with: with.as_bytes().into(),
            })
            .collect();
        let source = source.as_bytes();
        let edited = EditedText {
            source,
            edits: &edits,
        };
        String::from_utf8(edited.to_vec()).unwrap()
    }

    #[test]
    fn edits_replace_insert_and_delete() {
        for (edits, want) in [
            (&[][..], "0123456789"),
            (&[(2, 4, "ab")], "01ab456789"),
            (&[(0, 0, "<"), (10, 10, ">")], "<0123456789>"),
            (&[(0, 10, "")], ""),
            (&[(1, 2, ""), (2, 3, "x"), (3, 3, "yz")], "0xyz3456789"),
            (
                &[(9, 10, "longer than before")],
                "012345678longer than before",
            ),
        ] {
            assert_eq!(edited("0123456789", edits), want);
        }
    }

    #[test]
    fn write_appends_to_buffer() {
        let mut out = b"[".to_vec();
        EditedText::from_source(b"1").write(&mut out);
        assert_eq!(out, b"[1");
    }

    #[test]
    fn written_string_round_trips() {
        for text in [
            "",
            "plain",
            "quote \" slash \\ tab \t line \n return \r nul \0 bell \u{7} del \u{7f}",
            "\u{8}\u{c}\u{1f}",
            "é \u{d7ff} \u{e000} \u{fffd} \u{ffff} 😀 \u{2028}",
        ] {
            let mut out = Vec::new();
            write_string(&mut out, text);
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            assert_eq!(out, serde_json::to_vec(text).unwrap());
        }
    }
}
