//! `[tokens]`: the default lifetime of tokens.

use std::time::Duration;

use super::duration;

/// Default lifetime when neither the file nor the request names one.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3_600);

/// Lifetime of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLifetime {
    /// Expires after this time.
    Limited(Duration),
    /// Valid until revoked.
    Unlimited,
}

impl TokenLifetime {
    /// The accepted forms, for error messages.
    pub const EXPECTED: &'static str =
        "\"never\" or a duration of at least a second, such as \"90s\", \"12h\" or \"30d\"";

    /// Parses `never` or a duration of at least one second.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "never" {
            return Some(Self::Unlimited);
        }
        let lifetime = duration::parse_duration(text)?;
        (lifetime.as_secs() > 0).then_some(Self::Limited(lifetime))
    }

    /// Returns the time from creation to expiry, if limited.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Limited(lifetime) => Some(lifetime),
            Self::Unlimited => None,
        }
    }
}

impl Default for TokenLifetime {
    fn default() -> Self {
        Self::Limited(DEFAULT_LIFETIME)
    }
}
