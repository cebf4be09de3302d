//! Chooses the era of the first handshake message, by prior knowledge of the server.
//!
//! A server of both eras is used in the legacy era: nearly all tools elicit by server
//! requests, a legacy feature. So `initialize` goes first for every process that may accept it,
//! and after success there is no `server/discover`.

use bowline_core::era::{Era, EraSetting};

/// Handshake of a process start. A start creates a single process in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EraNegotiation {
    /// No knowledge: `initialize`, then `server/discover` as well after a refusal or without a
    /// quick response.
    #[default]
    Unknown,
    /// Era of the last run. Legacy: `initialize`, then `server/discover` after a refusal. Modern:
    /// both at once, in this order.
    Remembered(Era),
    /// The previous process exited at `initialize`: `server/discover`, then `initialize` as well
    /// after a refusal or without a quick response.
    DiscoverFirst,
    /// Fixed by the configuration: nothing else is tried.
    Only(Era),
}

impl From<EraSetting> for EraNegotiation {
    fn from(speaks: EraSetting) -> Self {
        match speaks {
            EraSetting::Auto => Self::Unknown,
            EraSetting::Only(era) => Self::Only(era),
        }
    }
}
