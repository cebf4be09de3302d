//! Listing of usable tools: all tools, or search tools.

use super::FeaturePattern;

/// In `auto` mode, search replaces listing above this number of tools: about as many as models
/// handle without confusion.
pub const AUTO_TOOLS_MAX: usize = 40;

/// Listing mode for the tools of all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExposeMode {
    /// Every tool.
    #[default]
    All,
    /// Favourites, and tools for searching and calling the rest.
    Search,
    /// `All` for few tools, `Search` for many.
    Auto,
}

impl ExposeMode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::All, Self::Search, Self::Auto];

    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Search => "search",
            Self::Auto => "auto",
        }
    }

    /// Parses the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// Whether this number of tools is searched instead of listed.
    #[must_use]
    pub const fn uses_search(self, tools: usize) -> bool {
        match self {
            Self::All => false,
            Self::Search => true,
            Self::Auto => tools > AUTO_TOOLS_MAX,
        }
    }
}

/// Listing mode and favourites. Hides nothing: every usable tool can be called by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolExposure {
    /// The listing mode.
    pub expose: ExposeMode,
    /// Tools listed even in search mode.
    pub favourites: Vec<FeaturePattern>,
}

impl ToolExposure {
    /// Whether a tool is listed even in search mode.
    #[must_use]
    pub fn is_favourite(&self, server: &str, tool: &str) -> bool {
        let mut favourites = self.favourites.iter();
        favourites.any(|pattern| pattern.matches_feature(server, tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tools_are_listed_many_searched() {
        for (expose, few, many) in [
            (ExposeMode::All, false, false),
            (ExposeMode::Search, true, true),
            (ExposeMode::Auto, false, true),
        ] {
            assert_eq!(expose.uses_search(AUTO_TOOLS_MAX), few, "{expose:?}");
            assert_eq!(expose.uses_search(AUTO_TOOLS_MAX + 1), many, "{expose:?}");
            assert_eq!(ExposeMode::parse(expose.as_str()), Some(expose));
        }
        assert_eq!(ExposeMode::parse("All"), None);
    }
}
