//! What people are told of executors.

use std::sync::Arc;

use bowline_link::executor::Carried;

/// Who dialled whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The executor dialled the gateway.
    Joined,
    /// The gateway dialled the executor.
    Dialled,
}

impl Via {
    /// Returns the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Dialled => "dialled",
        }
    }
}

/// What is spoken with an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Our own.
    #[default]
    Bowline,
    /// That of exec-servers.
    ExecServer,
}

impl Protocol {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bowline => "bowline",
            Self::ExecServer => "exec-server",
        }
    }
}

/// One executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it is connected.
    pub connected: bool,
    /// Who dialled, or is to dial, whom; absent where nobody has yet.
    pub via: Option<Via>,
    /// What is spoken.
    pub protocol: Protocol,
    /// Where it is, as far as is known.
    pub peer: Option<Arc<str>>,
    /// Its software and version.
    pub software: Arc<str>,
    /// Servers that it can start.
    pub servers: Vec<Arc<str>>,
    /// Names of the secrets that it can fill in.
    pub secrets: Vec<Arc<str>>,
    /// What it carried, over all connections.
    pub carried: Carried,
    /// Since when it is connected, or away, by the wall clock.
    pub since_ms: Option<u64>,
    /// Why it is not connected.
    pub lost: Option<Arc<str>>,
}
