//! Edits members of JSON objects by byte range: every byte that need not change stays, and the text
//! is copied once.

use std::borrow::Cow;
use std::ops::Range;

use crate::object::{self, JsonCursor};
use crate::splice::{ByteEdit, ByteSpan, EditList, EditedText};

mod member_list;

pub use member_list::MemberList;

/// A validated JSON text with pending edits of its objects. Every position refers to the text
/// before the edits. In one object, members are removed before others are inserted.
#[derive(Clone, Debug)]
pub struct ObjectEditor<'a> {
    text: &'a [u8],
    edits: EditList<'a>,
}

/// Where a new member goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewPlace {
    First,
    Last,
}

impl<'a> ObjectEditor<'a> {
    /// Returns an editor without edits.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            edits: EditList::default(),
        }
    }

    /// Returns the text before the edits.
    #[must_use]
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Returns the span of the whole text.
    #[must_use]
    pub const fn whole(&self) -> ByteSpan {
        ByteSpan {
            start: 0,
            end: self.text.len(),
        }
    }

    /// Replaces a range, in most cases a value.
    pub fn replace(&mut self, at: ByteSpan, with: impl Into<Cow<'a, [u8]>>) {
        let with = with.into();
        self.edits.push(ByteEdit { at, with });
    }

    /// Sets the member at the end of a path of keys, below the object at `at`. A value on the path
    /// that is not an object, such as null, becomes one. A new member comes first. Returns whether
    /// there is an object at `at`.
    pub fn set_first(
        &mut self,
        at: ByteSpan,
        path: &[&str],
        value: impl Into<Cow<'a, [u8]>>,
    ) -> bool {
        self.set(at, path, value.into(), NewPlace::First)
    }

    /// Like [`Self::set_first`], and a new member comes last.
    pub fn set_last(
        &mut self,
        at: ByteSpan,
        path: &[&str],
        value: impl Into<Cow<'a, [u8]>>,
    ) -> bool {
        self.set(at, path, value.into(), NewPlace::Last)
    }

    fn set(&mut self, at: ByteSpan, path: &[&str], value: Cow<'a, [u8]>, place: NewPlace) -> bool {
        let Some((key, deeper)) = path.split_first() else {
            return false;
        };
        match object::field(at.slice(self.text), key).map(|inner| inner.shift(at.start)) {
            Some(inner) if deeper.is_empty() => self.replace(inner, value),
            Some(inner) if object::is_object(inner.slice(self.text)) => {
                return self.set(inner, deeper, value, place);
            }
            Some(inner) => self.replace(inner, write_nested(deeper, value)),
            None => {
                let member = MemberList::from_member(key, &write_nested(deeper, value));
                return self.insert(at, member, place);
            }
        }
        true
    }

    /// Inserts members at the start of the object at `at`. Returns whether there is an object.
    pub fn insert_first(&mut self, at: ByteSpan, members: MemberList) -> bool {
        self.insert(at, members, NewPlace::First)
    }

    /// Inserts members at the end of the object at `at`. Returns whether there is an object.
    pub fn insert_last(&mut self, at: ByteSpan, members: MemberList) -> bool {
        self.insert(at, members, NewPlace::Last)
    }

    fn insert(&mut self, at: ByteSpan, members: MemberList, place: NewPlace) -> bool {
        let Some(open) = self.find_open(at) else {
            return false;
        };
        if members.is_empty() {
            return true;
        }
        let (start, with) = match (self.find_empty_close(open), place) {
            (Some(close), _) => {
                let inside = |edit: &&ByteEdit<'_>| {
                    edit.at.is_empty() && (open..=close).contains(&edit.at.start)
                };
                match (self.edits.as_slice().iter().find(inside), place) {
                    (Some(earlier), _) => (earlier.at.start, members.into_following()),
                    (None, NewPlace::First) => (open, members.into_only()),
                    (None, NewPlace::Last) => (close, members.into_only()),
                }
            }
            (None, NewPlace::First) => (open, members.into_preceding()),
            (None, NewPlace::Last) => {
                let end = at.slice(self.text).trim_ascii_end().len();
                (at.start + end.saturating_sub(1), members.into_following())
            }
        };
        self.replace(ByteSpan { start, end: start }, with);
        true
    }

    /// Removes the members of the object at `at` for which `keeps` returns false, with their
    /// commas. Returns whether there is an object.
    pub fn retain(&mut self, at: ByteSpan, mut keeps: impl FnMut(&[u8], ByteSpan) -> bool) -> bool {
        let Some(open) = self.find_open(at) else {
            return false;
        };
        let object = at.slice(self.text);
        let mut inside = JsonCursor::open(object, b'{');
        // End of the previous member, and start of the pending removal.
        let (mut end, mut removed_from) = (open - at.start, None);
        let mut has_kept = false;
        while let Some((key, value)) = inside.next_member() {
            if keeps(&key.unescape(), value.shift(at.start)) {
                match removed_from.take() {
                    Some(start) if has_kept => self.cut(at, start..end),
                    // The first kept member needs no comma before.
                    Some(start) => self.cut(at, start..skip_comma(object, end)),
                    None => {}
                }
                has_kept = true;
            } else {
                removed_from.get_or_insert(end);
            }
            end = value.end;
        }
        if let Some(start) = removed_from {
            self.cut(at, start..end);
        }
        true
    }

    /// Removes a range of the object at `at`.
    fn cut(&mut self, at: ByteSpan, range: Range<usize>) {
        let (start, end) = (range.start, range.end);
        self.replace(ByteSpan { start, end }.shift(at.start), &[][..]);
    }

    /// Returns the position after the opening brace of the object at `at`.
    fn find_open(&self, at: ByteSpan) -> Option<usize> {
        let open = skip_space(self.text, at.start);
        (open < at.end && self.text.get(open) == Some(&b'{')).then_some(open + 1)
    }

    /// Returns the position of the closing brace, if the object is empty or emptied.
    fn find_empty_close(&self, open: usize) -> Option<usize> {
        let is_removal = |edit: &&ByteEdit<'_>| edit.at.start == open && !edit.at.is_empty();
        let removal = self.edits.as_slice().iter().find(is_removal);
        let close = skip_space(self.text, removal.map_or(open, |edit| edit.at.end));
        (self.text.get(close) == Some(&b'}')).then_some(close)
    }

    /// Whether there are no edits.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.edits.as_slice().is_empty()
    }

    /// Returns where a range of the text is in the edited text, with the edits inside the range.
    #[must_use]
    pub fn moved_range(&self, range: &Range<usize>) -> Range<usize> {
        let (mut start, mut end) = (range.start, range.end);
        for edit in self.edits.as_slice() {
            let by = |at: usize| (at + edit.with.len()).saturating_sub(edit.at.len());
            if edit.at.end <= range.start {
                start = by(start);
            }
            if edit.at.start < range.end {
                end = by(end);
            }
        }
        start..end
    }

    /// Returns the text with the edits, to be written elsewhere.
    #[must_use]
    pub fn edited(&mut self) -> EditedText<'_> {
        EditedText {
            source: self.text,
            edits: self.edits.sorted(),
        }
    }

    /// Returns the edited text.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.edited().to_vec()
    }

    /// Returns the edited text, or the text itself without edits.
    #[must_use]
    pub fn finish_cow(self) -> Cow<'a, [u8]> {
        match self.is_unchanged() {
            true => Cow::Borrowed(self.text),
            false => Cow::Owned(self.finish()),
        }
    }
}

/// Writes a value below a path of keys.
fn write_nested<'a>(path: &[&str], value: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
    path.iter().rev().fold(value, |value, key| {
        Cow::Owned(MemberList::from_member(key, &value).into_object())
    })
}

fn skip_space(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    at + rest.iter().take_while(space).count()
}

fn skip_comma(object: &[u8], at: usize) -> usize {
    let comma = skip_space(object, at);
    match object.get(comma) {
        Some(b',') => comma + 1,
        _ => at,
    }
}

#[cfg(test)]
mod tests;
