//! The members of an object that a reader asks for, found in one pass; none may come twice, nor
//! in another case.

use std::sync::Arc;

use bytes::Bytes;

use crate::fold;
use crate::frame::FrameError;
use crate::object;
use crate::scan::{self, Sink};
use crate::span::Span;
use crate::text::Literal;

/// The members of one object that are known by name.
#[derive(Debug)]
pub(crate) struct Members<'a, const N: usize> {
    /// The text that holds the object; payloads become slices of it.
    text: &'a Bytes,
    /// Where the object begins in it.
    at: usize,
    names: &'static [&'static str; N],
    spans: [Option<Span>; N],
    /// The name that a member is another spelling of.
    variant: Option<&'static str>,
}

impl<'a, const N: usize> Members<'a, N> {
    /// Reads a whole text: one object, valid to its end, that repeats no member.
    pub(crate) fn of_text(
        text: &'a Bytes,
        names: &'static [&'static str; N],
    ) -> Result<Self, FrameError> {
        let mut members = Self {
            text,
            at: 0,
            names,
            spans: [None; N],
            variant: None,
        };
        scan::walk_around(text, &mut members).map_err(|_| FrameError::NoObject)?;
        if let Some(name) = members.variant {
            return Err(FrameError::Member(name));
        }
        match text.trim_ascii_start().first() {
            Some(b'{') => Ok(members),
            _ => Err(FrameError::NoObject),
        }
    }

    /// Reads an object inside a text that was checked before; `what` names it.
    pub(crate) fn inside(
        text: &'a Bytes,
        span: Span,
        names: &'static [&'static str; N],
        what: &'static str,
    ) -> Result<Self, FrameError> {
        let bytes = span.of(text);
        let Some(b'{') = bytes.first() else {
            return Err(FrameError::Member(what));
        };
        let mut spans = [None; N];
        for (key, value) in object::fields(bytes) {
            for (name, slot) in names.iter().zip(&mut spans) {
                // Whoever reads the other of two would see another message.
                let again = key == *name && slot.replace(value).is_some();
                if again || fold::is_variant(key.as_bytes(), name) {
                    return Err(FrameError::Member(name));
                }
            }
        }
        let at = span.start;
        Ok(Self {
            text,
            at,
            names,
            spans,
            variant: None,
        })
    }

    /// Returns where a member is in the text. What is null is not there.
    pub(crate) fn span(&self, name: &str) -> Option<Span> {
        let mut named = self.names.iter().zip(&self.spans);
        let (_, span) = named.find(|(known, _)| **known == name)?;
        let span = span.as_ref()?.shift(self.at);
        (span.of(self.text) != b"null").then_some(span)
    }

    /// Returns a member that is some JSON.
    pub(crate) fn value(&self, name: &'static str) -> Result<Bytes, FrameError> {
        let mut named = self.names.iter().zip(&self.spans);
        let span = named.find(|(known, _)| **known == name);
        let span = span.and_then(|(_, span)| *span);
        span.map(|span| slice(self.text, span.shift(self.at)))
            .ok_or(FrameError::Member(name))
    }

    /// Returns a member that begins so, if it is there.
    pub(crate) fn begun(
        &self,
        name: &'static str,
        bracket: u8,
    ) -> Result<Option<Bytes>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        match span.of(self.text).first() {
            Some(first) if *first == bracket => Ok(Some(slice(self.text, span))),
            _ => Err(FrameError::Member(name)),
        }
    }

    /// Returns a text.
    pub(crate) fn text(&self, name: &'static str) -> Result<Arc<str>, FrameError> {
        self.text_if(name)?.ok_or(FrameError::Member(name))
    }

    /// Returns a text, if it is there.
    pub(crate) fn text_if(&self, name: &'static str) -> Result<Option<Arc<str>>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        match object::string(span.of(self.text)) {
            Some(text) => Ok(Some(text.into())),
            None => Err(FrameError::Member(name)),
        }
    }

    /// Returns a whole number, if it is there.
    pub(crate) fn number_if(&self, name: &'static str) -> Result<Option<u64>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(span.of(self.text)).ok();
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(FrameError::Member(name)),
        }
    }

    /// Returns whether it is so, if it is said.
    pub(crate) fn flag_if(&self, name: &'static str) -> Result<Option<bool>, FrameError> {
        match self.span(name).map(|span| span.of(self.text)) {
            None => Ok(None),
            Some(b"true") => Ok(Some(true)),
            Some(b"false") => Ok(Some(false)),
            Some(_) => Err(FrameError::Member(name)),
        }
    }
}

impl<const N: usize> Sink for Members<'_, N> {
    fn member(&mut self, key: Literal<'_>, value: Span) {
        let key = key.meaning();
        let mut named = self.names.iter().zip(&mut self.spans);
        if let Some((_, slot)) = named.find(|(name, _)| name.as_bytes() == &*key) {
            *slot = Some(value);
            return;
        }
        let mut names = self.names.iter();
        let variant = names.find(|name| fold::is_variant(&key, name));
        self.variant = self.variant.or_else(|| variant.copied());
    }
}

/// Returns a piece of a text without a copy.
pub(crate) fn slice(text: &Bytes, at: Span) -> Bytes {
    match at.start <= at.end && at.end <= text.len() {
        true => text.slice(at.start..at.end),
        false => Bytes::new(),
    }
}
