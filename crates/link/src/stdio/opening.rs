//! Which era a process is met in first, by what is known of its server.
//!
//! A server of both eras is spoken to in the legacy one: servers whose tools ask by requests of
//! their own, as nearly all that ask do, can do so in that one only. So `initialize` goes first
//! wherever a process may take it, and a process that answers it is never asked anything else.

use bowline_core::era::{Era, Speaks};

/// How the first process of a start is met. A start makes one process, whatever that says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// Nothing is known: `initialize`, then `server/discover` as well where that is refused or no
    /// response comes soon.
    #[default]
    Unknown,
    /// The server spoke this era when it last served. Legacy: `initialize`, then
    /// `server/discover` where that is refused. Modern: both at once, in that order.
    Remembered(Era),
    /// The process before ended at `initialize`: `server/discover`, then `initialize` as well
    /// where that is refused or no response comes soon.
    DiscoverFirst,
    /// The configuration says so: nothing else is tried.
    Only(Era),
}

impl From<Speaks> for Opening {
    fn from(speaks: Speaks) -> Self {
        match speaks {
            Speaks::Auto => Self::Unknown,
            Speaks::Only(era) => Self::Only(era),
        }
    }
}
