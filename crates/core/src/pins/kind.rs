//! The kinds of definitions that are pinned: the four lists and the introduction of a server.

use super::{PROMPTS_MAX, RESOURCES_MAX, TOOLS_MAX};

/// What a pinned definition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinKind {
    /// A tool, by its name.
    #[default]
    Tool,
    /// A prompt, by its name.
    Prompt,
    /// A resource, by its URI.
    Resource,
    /// A template of resources, by its URI template.
    Template,
    /// A part of the result of `initialize`: `instructions` or `serverInfo`.
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

    /// Returns the word used in marks, events, API and command line.
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

    /// Reads the word.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Returns how many entries of one server are remembered.
    #[must_use]
    pub const fn entries_max(self) -> usize {
        match self {
            Self::Tool => TOOLS_MAX,
            Self::Prompt | Self::Template | Self::Introduction => PROMPTS_MAX,
            Self::Resource => RESOURCES_MAX,
        }
    }
}
