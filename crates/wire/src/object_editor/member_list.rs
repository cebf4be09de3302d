//! New members of an object.

use crate::splice::write_string;

/// Members to insert into an object, or to become one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberList {
    /// A byte in front of each member: a brace, and then commas.
    text: Vec<u8>,
}

impl MemberList {
    /// Returns an empty list with room for members of this size.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            text: Vec::with_capacity(bytes),
        }
    }

    /// Returns a list with one member.
    #[must_use]
    pub fn from_member(key: &str, value: &[u8]) -> Self {
        let mut members = Self::with_capacity(key.len() + value.len() + 8);
        members.push(key, value);
        members
    }

    /// Appends a member; `value` is JSON.
    pub fn push(&mut self, key: &str, value: &[u8]) {
        self.push_key(key);
        self.text.extend_from_slice(value);
    }

    /// Appends a member with a string.
    pub fn push_text(&mut self, key: &str, text: &str) {
        self.push_key(key);
        write_string(&mut self.text, text);
    }

    /// Whether there are no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns an object with these members.
    #[must_use]
    pub fn into_object(mut self) -> Vec<u8> {
        if self.text.is_empty() {
            self.text.push(b'{');
        }
        self.text.push(b'}');
        self.text
    }

    fn push_key(&mut self, key: &str) {
        self.push_separator();
        write_string(&mut self.text, key);
        self.text.push(b':');
    }

    fn push_separator(&mut self) {
        let separator = if self.text.is_empty() { b'{' } else { b',' };
        self.text.push(separator);
    }

    /// Returns the text of the only members of an object.
    pub(super) fn into_only(mut self) -> Vec<u8> {
        self.text.drain(..1.min(self.text.len()));
        self.text
    }

    /// Returns the text of members with others behind.
    pub(super) fn into_preceding(self) -> Vec<u8> {
        let mut text = self.into_only();
        text.push(b',');
        text
    }

    /// Returns the text of members with others before.
    pub(super) fn into_following(mut self) -> Vec<u8> {
        if let Some(first) = self.text.first_mut() {
            *first = b',';
        }
        self.text
    }
}
