//! Kinds of pinned definitions: the four lists and the server's introduction.

use super::{PROMPTS_MAX, RESOURCES_MAX, TOOLS_MAX};

/// Kind of a pinned definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinKind {
    /// A tool, by name.
    #[default]
    Tool,
    /// A prompt, by name.
    Prompt,
    /// A resource, by URI.
    Resource,
    /// A resource template, by URI template.
    Template,
    /// A part of the `initialize` result: `instructions` or `serverInfo`.
    Introduction,
}

impl PinKind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Tool,
        Self::Prompt,
        Self::Resource,
        Self::Template,
        Self::Introduction,
    ];

    /// Returns the word used in annotations, events, API and command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
            Self::Introduction => "introduction",
        }
    }

    /// Parses the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Returns the limit of pinned entries per server.
    #[must_use]
    pub const fn entries_max(self) -> usize {
        match self {
            Self::Tool => TOOLS_MAX,
            Self::Prompt | Self::Template | Self::Introduction => PROMPTS_MAX,
            Self::Resource => RESOURCES_MAX,
        }
    }
}
