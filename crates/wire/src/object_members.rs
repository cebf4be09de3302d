//! Extracts known members of an object in one pass; duplicates and case variants are refused.

use std::sync::Arc;

use bytes::Bytes;

use crate::frame_error::FrameError;
use crate::scan::{self, MemberSink};
use crate::splice::ByteSpan;
use crate::string_literal::StringLiteral;
use crate::{case_fold, object};

/// The known members of one object.
#[derive(Debug)]
pub struct ObjectMembers<'a, const N: usize> {
    /// The text with the object; payloads become slices.
    source: &'a Bytes,
    /// Offset of the object in the text.
    base: usize,
    names: &'static [&'static str; N],
    spans: [Option<ByteSpan>; N],
    /// The known name with a case variant in the object.
    variant: Option<&'static str>,
}

impl<'a, const N: usize> ObjectMembers<'a, N> {
    /// Parses a whole text: one valid object without duplicate members.
    pub fn parse(text: &'a Bytes, names: &'static [&'static str; N]) -> Result<Self, FrameError> {
        let mut members = Self {
            source: text,
            base: 0,
            names,
            spans: [None; N],
            variant: None,
        };
        scan::scan_carrier(text, &mut members).map_err(|_| FrameError::NoObject)?;
        if let Some(name) = members.variant {
            return Err(FrameError::Member(name));
        }
        match text.trim_ascii_start().first() {
            Some(b'{') => Ok(members),
            _ => Err(FrameError::NoObject),
        }
    }

    /// Parses an object inside validated text; `what` names the object in errors.
    pub fn parse_at(
        text: &'a Bytes,
        span: ByteSpan,
        names: &'static [&'static str; N],
        member: &'static str,
    ) -> Result<Self, FrameError> {
        let bytes = span.slice(text);
        let Some(b'{') = bytes.first() else {
            return Err(FrameError::Member(member));
        };
        let mut spans = [None; N];
        for (key, value) in object::fields(bytes) {
            for (name, slot) in names.iter().zip(&mut spans) {
                // A reader using the second duplicate would see a different message.
                let is_repeated = key == *name && slot.replace(value).is_some();
                if is_repeated || case_fold::is_variant(key.as_bytes(), name) {
                    return Err(FrameError::Member(name));
                }
            }
        }
        let at = span.start;
        Ok(Self {
            source: text,
            base: at,
            names,
            spans,
            variant: None,
        })
    }

    /// Returns the span of a member in the text; null counts as absent.
    pub fn span(&self, name: &str) -> Option<ByteSpan> {
        let mut named = self.names.iter().zip(&self.spans);
        let (_, span) = named.find(|(known, _)| **known == name)?;
        let span = span.as_ref()?.shift(self.base);
        (span.slice(self.source) != b"null").then_some(span)
    }

    /// Returns a member of any type.
    pub fn required_value(&self, name: &'static str) -> Result<Bytes, FrameError> {
        let mut named = self.names.iter().zip(&self.spans);
        let span = named.find(|(known, _)| **known == name);
        let span = span.and_then(|(_, span)| *span);
        span.map(|span| slice_bytes(self.source, span.shift(self.base)))
            .ok_or(FrameError::Member(name))
    }

    /// Returns a member starting with `bracket`, if present.
    pub fn optional_raw(
        &self,
        name: &'static str,
        bracket: u8,
    ) -> Result<Option<Bytes>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        match span.slice(self.source).first() {
            Some(first) if *first == bracket => Ok(Some(slice_bytes(self.source, span))),
            _ => Err(FrameError::Member(name)),
        }
    }

    /// Returns a string.
    pub fn required_text(&self, name: &'static str) -> Result<Arc<str>, FrameError> {
        self.optional_text(name)?.ok_or(FrameError::Member(name))
    }

    /// Returns a string, if present.
    pub fn optional_text(&self, name: &'static str) -> Result<Option<Arc<str>>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        match object::parse_string(span.slice(self.source)) {
            Some(text) => Ok(Some(text.into())),
            None => Err(FrameError::Member(name)),
        }
    }

    /// Returns a whole number, if present.
    pub fn optional_number(&self, name: &'static str) -> Result<Option<u64>, FrameError> {
        let Some(span) = self.span(name) else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(span.slice(self.source)).ok();
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(FrameError::Member(name)),
        }
    }

    /// Returns a boolean, if present.
    pub fn optional_flag(&self, name: &'static str) -> Result<Option<bool>, FrameError> {
        match self.span(name).map(|span| span.slice(self.source)) {
            None => Ok(None),
            Some(b"true") => Ok(Some(true)),
            Some(b"false") => Ok(Some(false)),
            Some(_) => Err(FrameError::Member(name)),
        }
    }
}

impl<const N: usize> MemberSink for ObjectMembers<'_, N> {
    fn on_member(&mut self, key: StringLiteral<'_>, value: ByteSpan) {
        let key = key.unescape();
        let mut named = self.names.iter().zip(&mut self.spans);
        if let Some((_, slot)) = named.find(|(name, _)| name.as_bytes() == &*key) {
            *slot = Some(value);
            return;
        }
        let mut names = self.names.iter();
        let variant = names.find(|name| case_fold::is_variant(&key, name));
        self.variant = self.variant.or_else(|| variant.copied());
    }
}

/// Returns a slice of a text without a copy.
pub fn slice_bytes(text: &Bytes, at: ByteSpan) -> Bytes {
    match at.start <= at.end && at.end <= text.len() {
        true => text.slice(at.start..at.end),
        false => Bytes::new(),
    }
}
