//! How much of what may be used is listed: all of it, or a way to find it.

use super::Pattern;

/// In `auto`, more tools than this are found instead of listed: about as many as models choose
/// from without being confused by the rest.
pub const AUTO_TOOLS_MAX: usize = 40;

/// What is listed of the tools of all servers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expose {
    /// Every tool.
    #[default]
    All,
    /// Favourites, and tools that find and call the others.
    Search,
    /// Every tool while they are few, the other where they are many.
    Auto,
}

impl Expose {
    /// Every word there is.
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

    /// Reads such a word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }

    /// Whether so many tools are found instead of listed.
    #[must_use]
    pub const fn searches(self, tools: usize) -> bool {
        match self {
            Self::All => false,
            Self::Search => true,
            Self::Auto => tools > AUTO_TOOLS_MAX,
        }
    }
}

/// What is listed, and what is listed always. It hides nothing: whatever may be used can be
/// called by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// What is listed.
    pub expose: Expose,
    /// What is listed also where the rest is only found.
    pub favourites: Vec<Pattern>,
}

impl Exposure {
    /// Whether a tool is listed also where the rest is only found.
    #[must_use]
    pub fn favours(&self, server: &str, tool: &str) -> bool {
        let mut favourites = self.favourites.iter();
        favourites.any(|pattern| pattern.fits(server, tool))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tools_are_listed_and_many_are_found() {
        for (expose, few, many) in [
            (Expose::All, false, false),
            (Expose::Search, true, true),
            (Expose::Auto, false, true),
        ] {
            assert_eq!(expose.searches(AUTO_TOOLS_MAX), few, "{expose:?}");
            assert_eq!(expose.searches(AUTO_TOOLS_MAX + 1), many, "{expose:?}");
            assert_eq!(Expose::parse(expose.as_str()), Some(expose));
        }
        assert_eq!(Expose::parse("All"), None);
    }
}
