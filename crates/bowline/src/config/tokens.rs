//! `[tokens]`: how long a token lives whose maker does not say so.

use std::time::Duration;

use super::duration;

/// The lifetime of tokens where neither the file nor the maker says one.
const DEFAULT: Duration = Duration::from_secs(90 * 24 * 3_600);

/// How long a token lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLifetime {
    /// It expires so long after it was made.
    Limited(Duration),
    /// It lives until it is revoked.
    Unlimited,
}

impl TokenLifetime {
    /// The form of the text, for messages.
    pub(crate) const EXPECTED: &'static str =
        "\"never\" or a duration of at least a second, such as \"90s\", \"12h\" or \"30d\"";

    /// Reads `never` or a duration; less than a second would be no token at all.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == "never" {
            return Some(Self::Unlimited);
        }
        let life = duration::parse(text)?;
        (life.as_secs() > 0).then_some(Self::Limited(life))
    }

    /// Returns the time from making to expiry, where there is an expiry.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Limited(life) => Some(life),
            Self::Unlimited => None,
        }
    }
}

impl Default for TokenLifetime {
    fn default() -> Self {
        Self::Limited(DEFAULT)
    }
}
