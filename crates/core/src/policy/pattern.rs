//! What a rule is about: `server.name` with `*` for any text, and what kind of thing.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::call::Kind;

/// A longer pattern is a mistake.
pub const PATTERN_BYTES_MAX: usize = 1_024;

/// More wildcards than this in one part are a mistake, and would cost time on every call.
pub const WILDCARDS_MAX: usize = 8;

/// Names things of servers: `files.read_*`, `prompt:files.*`, `resource:files.file:///srv/*`.
///
/// Without a kind, a pattern that grants means tools, and one that takes away means everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: Arc<str>,
    pub(super) kind: Option<Kind>,
    pub(super) server: Glob,
    pub(super) name: Glob,
}

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PatternError {
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// There is too much.
    #[error("it is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    /// There are too many wildcards.
    #[error("it has more than {WILDCARDS_MAX} wildcards in one part")]
    TooManyWildcards,
    /// It names a kind of thing that no server has.
    #[error("it begins with an unknown kind; there are `tool:`, `prompt:` and `resource:`")]
    UnknownKind,
    /// A part is missing.
    #[error("there is nothing on one side of the dot; write `server.name`")]
    MissingPart,
}

impl Pattern {
    /// Reads a pattern. One without a dot means everything of the servers it names.
    ///
    /// # Errors
    /// It cannot be one.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        let (kind, rest) = kind_of(text)?;
        let (server, name) = match rest.split_once('.') {
            Some(("", _) | (_, "")) => return Err(PatternError::MissingPart),
            Some(parts) => parts,
            None if rest.is_empty() => return Err(PatternError::Empty),
            None => (rest, "*"),
        };
        Ok(Self {
            text: text.into(),
            kind,
            server: Glob::parse(server)?,
            name: Glob::parse(name)?,
        })
    }

    /// Returns it as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the kind of thing it is about, where it says one.
    #[must_use]
    pub const fn kind(&self) -> Option<Kind> {
        self.kind
    }

    /// Returns the server it names, where it names exactly one.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        match &self.server {
            Glob::Exact(server) => Some(server),
            Glob::Any | Glob::Wild(_) => None,
        }
    }

    /// Returns the name it is about, where it is about exactly one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.name {
            Glob::Exact(name) => Some(name),
            Glob::Any | Glob::Wild(_) => None,
        }
    }

    /// Whether it is about every name.
    pub(super) const fn is_any_name(&self) -> bool {
        matches!(self.name, Glob::Any)
    }

    /// Whether it is about anything of `server`.
    pub(super) fn is_about(&self, server: &str) -> bool {
        self.server.fits(server)
    }

    /// Whether it is about `name` of `server`, of whatever kind.
    #[must_use]
    pub fn fits(&self, server: &str, name: &str) -> bool {
        self.server.fits(server) && self.name.fits(name)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A server name holds no colon, so what stands before one is a kind.
fn kind_of(text: &str) -> Result<(Option<Kind>, &str), PatternError> {
    let before_dot = text.split_once('.').map_or(text, |(server, _)| server);
    let Some((kind, _)) = before_dot.split_once(':') else {
        return Ok((None, text));
    };
    let kind = match kind {
        "tool" => Kind::Tool,
        "prompt" => Kind::Prompt,
        "resource" => Kind::Resource,
        _ => return Err(PatternError::UnknownKind),
    };
    let rest = text.split_once(':').map_or("", |(_, rest)| rest);
    Ok((Some(kind), rest))
}

/// A text in which `*` stands for any text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Glob {
    /// Everything.
    Any,
    /// This text and no other.
    Exact(Box<str>),
    /// With wildcards.
    Wild(Box<str>),
}

impl Glob {
    fn parse(text: &str) -> Result<Self, PatternError> {
        match text.bytes().filter(|byte| *byte == b'*').count() {
            0 => Ok(Self::Exact(text.into())),
            _ if text == "*" => Ok(Self::Any),
            count if count > WILDCARDS_MAX => Err(PatternError::TooManyWildcards),
            _ => Ok(Self::Wild(text.into())),
        }
    }

    pub(super) fn fits(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *text,
            Self::Wild(glob) => fits(glob, text),
        }
    }
}

/// Takes for each piece between wildcards the first place where it fits, which is enough: a later
/// one leaves less for the pieces that follow.
fn fits(glob: &str, text: &str) -> bool {
    let mut pieces = glob.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = rest.get(at + piece.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_any_text_and_nothing_else_does() {
        let fit = |glob: &str, text: &str| Glob::parse(glob).unwrap().fits(text);
        for (glob, text) in [
            ("*", ""),
            ("read_*", "read_"),
            ("read_*", "read_file"),
            ("*_file", "read_file"),
            ("*a*b*", "xaxbx"),
            ("a*a", "aa"),
            ("a**b", "ab"),
            ("a.b", "a.b"),
        ] {
            assert!(fit(glob, text), "{glob} {text}");
        }
        for (glob, text) in [
            ("read_*", "Read_file"),
            ("read_*", "xread_file"),
            ("*_file", "read_files"),
            ("a*a", "a"),
            ("*ab*ba*", "aba"),
            ("a.b", "axb"),
            ("a?b", "axb"),
            ("", "a"),
        ] {
            assert!(!fit(glob, text), "{glob} {text}");
        }
    }

    #[test]
    fn a_pattern_is_a_kind_a_server_and_a_name() {
        let pattern = Pattern::parse(" resource:files.file:///a.b/* ").unwrap();
        assert_eq!(pattern.kind, Some(Kind::Resource));
        assert_eq!(pattern.server(), Some("files"));
        assert!(pattern.fits("files", "file:///a.b/c") && !pattern.fits("files", "file:///x"));
        assert_eq!(pattern.as_str(), "resource:files.file:///a.b/*");
        let whole = Pattern::parse("files").unwrap();
        assert!(whole.fits("files", "x") && !whole.fits("other", "x"));
        assert_eq!(whole.kind, None);
        let odd = Pattern::parse("files.a:b.c").unwrap();
        assert_eq!((odd.kind, odd.name()), (None, Some("a:b.c")));
    }

    #[test]
    fn a_text_that_is_no_pattern_says_why() {
        for (text, why) in [
            ("", PatternError::Empty),
            ("  ", PatternError::Empty),
            ("prompt:", PatternError::Empty),
            (".x", PatternError::MissingPart),
            ("x.", PatternError::MissingPart),
            ("tools:a.b", PatternError::UnknownKind),
            ("a.*b*c*d*e*f*g*h*i*", PatternError::TooManyWildcards),
        ] {
            assert_eq!(Pattern::parse(text), Err(why), "{text}");
        }
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        assert_eq!(Pattern::parse(&long), Err(PatternError::TooLong));
    }
}
