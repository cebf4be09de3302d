//! All that happened in one world, in one order, each with its moment.

use std::sync::Arc;

use bowline_host::supervisor::Order;

use crate::ledger::{Deed, Life};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When, in milliseconds since the world began.
    pub at_ms: u64,
    /// What.
    pub what: Happened,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A process was started.
    Started(Life),
    /// It shook hands.
    Connected(Life),
    /// The host closed its link.
    Closed {
        /// The life that ends so.
        life: Life,
        /// Calls that were under way on it.
        running: usize,
    },
    /// Its process is gone.
    Ended(Life),
    /// A tool runs.
    Executed(Deed),
    /// It answered, well or badly, or went down with its server.
    Finished(Deed),
    /// It was told that nobody waits any more.
    Cancelled(Deed),
    /// It answered after nobody waited any more.
    Late(Deed),
    /// A caller calls.
    Called {
        /// The server.
        server: Arc<str>,
        /// What tells this call from all others.
        arguments: String,
        /// How the breaker stood.
        circuit: &'static str,
    },
    /// A person gives an order.
    Ordered {
        /// The server.
        server: Arc<str>,
        /// What it is to do.
        order: Order,
    },
    /// The order of a person was taken.
    Taken {
        /// The server.
        server: Arc<str>,
        /// What it is to do.
        order: Order,
    },
    /// A test did something else.
    Noted(String),
}

impl Happened {
    /// Returns the server that it is about.
    #[must_use]
    pub fn server(&self) -> Option<&Arc<str>> {
        match self {
            Self::Started(life)
            | Self::Connected(life)
            | Self::Closed { life, .. }
            | Self::Ended(life) => Some(&life.server),
            Self::Executed(deed)
            | Self::Finished(deed)
            | Self::Cancelled(deed)
            | Self::Late(deed) => Some(&deed.server),
            Self::Called { server, .. }
            | Self::Ordered { server, .. }
            | Self::Taken { server, .. } => Some(server),
            Self::Noted(_) => None,
        }
    }
}
