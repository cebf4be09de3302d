//! How much a server says of what it does.

/// A log level of the protocol, the most verbose first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// What goes on.
    Info,
    /// What is normal but worth a look.
    Notice,
    /// What may become a fault.
    Warning,
    /// A fault.
    Error,
    /// A fault of something that others need.
    Critical,
    /// Something must be done at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl Level {
    /// Every level, the most verbose first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Returns the level of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// Returns its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_read_back_from_their_names_and_are_ordered_by_what_they_leave_out() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.as_str()), Some(level));
        }
        assert!(Level::ALL.is_sorted());
        assert_eq!(Level::parse("Debug"), None);
    }
}
