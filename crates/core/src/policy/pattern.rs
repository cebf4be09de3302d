//! Patterns of rules: an optional kind, and `server.name` with `*` wildcards.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::call::FeatureKind;

/// Longest pattern.
pub const PATTERN_BYTES_MAX: usize = 1_024;

/// Wildcards per part; more would cost time on every call.
pub const WILDCARDS_MAX: usize = 8;

/// Matches server features: `files.read_*`, `prompt:files.*`, `resource:files.file:///srv/*`.
///
/// Without a kind, a granting pattern means tools, and a denying pattern means all kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FeaturePattern {
    text: Arc<str>,
    pub(super) kind: Option<FeatureKind>,
    pub(super) server: Glob,
    pub(super) name: Glob,
}

/// Why a pattern is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PatternError {
    /// Empty.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("it is longer than {PATTERN_BYTES_MAX} bytes")]
    TooLong,
    /// Too many wildcards.
    #[error("it has more than {WILDCARDS_MAX} wildcards in one part")]
    TooManyWildcards,
    /// Unknown kind.
    #[error("it begins with an unknown kind; there are `tool:`, `prompt:` and `resource:`")]
    UnknownKind,
    /// A part is missing.
    #[error("there is nothing on one side of the dot; write `server.name`")]
    MissingPart,
}

impl FeaturePattern {
    /// Parses a pattern. A pattern without a dot matches all features of the named servers.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong);
        }
        let (kind, rest) = parse_kind(text)?;
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

    /// Returns the source text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the kind, if given.
    #[must_use]
    pub const fn kind(&self) -> Option<FeatureKind> {
        self.kind
    }

    /// Returns the server, if exact.
    #[must_use]
    pub fn server(&self) -> Option<&str> {
        match &self.server {
            Glob::Exact(server) => Some(server),
            Glob::Any | Glob::Wild(_) => None,
        }
    }

    /// Returns the name, if exact.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.name {
            Glob::Exact(name) => Some(name),
            Glob::Any | Glob::Wild(_) => None,
        }
    }

    /// Whether the pattern matches every name.
    pub(super) const fn is_any_name(&self) -> bool {
        matches!(self.name, Glob::Any)
    }

    /// Whether the pattern may match a feature of `server`.
    pub(super) fn may_match_server(&self, server: &str) -> bool {
        self.server.matches_text(server)
    }

    /// Whether the pattern matches `name` of `server`, ignoring the kind.
    #[must_use]
    pub fn matches_feature(&self, server: &str, name: &str) -> bool {
        self.server.matches_text(server) && self.name.matches_text(name)
    }
}

impl fmt::Display for FeaturePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits off the kind before the colon; server names contain no colon.
fn parse_kind(text: &str) -> Result<(Option<FeatureKind>, &str), PatternError> {
    let before_dot = text.split_once('.').map_or(text, |(server, _)| server);
    let Some((kind, _)) = before_dot.split_once(':') else {
        return Ok((None, text));
    };
    let kind = match kind {
        "tool" => FeatureKind::Tool,
        "prompt" => FeatureKind::Prompt,
        "resource" => FeatureKind::Resource,
        _ => return Err(PatternError::UnknownKind),
    };
    let rest = text.split_once(':').map_or("", |(_, rest)| rest);
    Ok((Some(kind), rest))
}

/// A text with `*` wildcards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Glob {
    /// Any text.
    Any,
    /// This exact text.
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

    pub(super) fn matches_text(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *text,
            Self::Wild(glob) => glob_matches(glob, text),
        }
    }
}

/// Matches each piece between wildcards at the first possible position, which suffices: a later
/// position leaves less text for the following pieces.
fn glob_matches(glob: &str, text: &str) -> bool {
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
    fn wildcard_matches_any_text() {
        let fit = |glob: &str, text: &str| Glob::parse(glob).unwrap().matches_text(text);
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
    fn pattern_parses_kind_server_and_name() {
        let pattern = FeaturePattern::parse(" resource:files.file:///a.b/* ").unwrap();
        assert_eq!(pattern.kind, Some(FeatureKind::Resource));
        assert_eq!(pattern.server(), Some("files"));
        assert!(
            pattern.matches_feature("files", "file:///a.b/c")
                && !pattern.matches_feature("files", "file:///x")
        );
        assert_eq!(pattern.as_str(), "resource:files.file:///a.b/*");
        let whole = FeaturePattern::parse("files").unwrap();
        assert!(whole.matches_feature("files", "x") && !whole.matches_feature("other", "x"));
        assert_eq!(whole.kind, None);
        let odd = FeaturePattern::parse("files.a:b.c").unwrap();
        assert_eq!((odd.kind, odd.name()), (None, Some("a:b.c")));
    }

    #[test]
    fn invalid_pattern_names_its_error() {
        for (text, why) in [
            ("", PatternError::Empty),
            ("  ", PatternError::Empty),
            ("prompt:", PatternError::Empty),
            (".x", PatternError::MissingPart),
            ("x.", PatternError::MissingPart),
            ("tools:a.b", PatternError::UnknownKind),
            ("a.*b*c*d*e*f*g*h*i*", PatternError::TooManyWildcards),
        ] {
            assert_eq!(FeaturePattern::parse(text), Err(why), "{text}");
        }
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        assert_eq!(FeaturePattern::parse(&long), Err(PatternError::TooLong));
    }
}
