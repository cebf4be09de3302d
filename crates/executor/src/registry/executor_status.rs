//! Status of executors, for people and the API.

use std::sync::Arc;

use crate::connection::ExecutorTraffic;

/// Which side dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialDirection {
    /// The executor dialled the gateway.
    Joined,
    /// The gateway dialled the executor.
    Dialled,
}

impl DialDirection {
    /// Returns the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Dialled => "dialled",
        }
    }
}

/// Wire protocol of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorProtocol {
    /// Bowline's own protocol.
    #[default]
    Bowline,
    /// The exec-server protocol.
    ExecServer,
}

impl ExecutorProtocol {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bowline => "bowline",
            Self::ExecServer => "exec-server",
        }
    }
}

/// Status of one executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorStatus {
    /// Name.
    pub name: Arc<str>,
    /// Whether the executor is connected.
    pub connected: bool,
    /// Which side dials; absent before the first connect or dial.
    pub direction: Option<DialDirection>,
    /// Wire protocol.
    pub protocol: ExecutorProtocol,
    /// Remote address, if known.
    pub peer: Option<Arc<str>>,
    /// Software name and version.
    pub software: Arc<str>,
    /// Startable servers.
    pub servers: Vec<Arc<str>>,
    /// Names of the available secrets.
    pub secrets: Vec<Arc<str>>,
    /// Traffic over all connections.
    pub traffic: ExecutorTraffic,
    /// Start of the current state, connected or away, by the wall clock.
    pub since_ms: Option<u64>,
    /// Why the executor is not connected.
    pub lost_reason: Option<Arc<str>>,
}
