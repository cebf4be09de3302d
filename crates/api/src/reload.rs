//! `/api/v1/reload` and `/api/v1/refresh`: the config file and the lists of servers, read again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;
use crate::servers::{BrokenServer, ServerStatus};

/// Response of `POST /api/v1/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadResponse {
    /// API version.
    pub v: u8,
    /// Added servers.
    pub added: Vec<Arc<str>>,
    /// Servers restarted because of a changed entry.
    pub changed: Vec<ChangedServerEntry>,
    /// Removed servers.
    pub removed: Vec<Arc<str>>,
    /// True if the policy changed.
    pub policy_changed: bool,
    /// True if the dialled executors changed.
    pub executors_changed: bool,
    /// Number of servers that kept running.
    pub kept: usize,
    /// Servers that cannot run on this machine.
    pub broken: Vec<BrokenServer>,
    /// Warnings about the config.
    pub warnings: Vec<String>,
    /// Changed keys that take effect at the next start of the gateway.
    pub needs_restart: Vec<Word>,
    /// Time from the request to the new servers.
    pub took_ms: u64,
    /// The changes as text, line by line.
    pub lines: Vec<String>,
}

/// A server with a changed entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangedServerEntry {
    /// The server.
    pub server: Arc<str>,
    /// Changed keys of the entry.
    pub keys: Vec<Word>,
}

/// Response of `POST /api/v1/refresh` and `POST /api/v1/servers/{name}/refresh`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RefreshResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// One report for each refreshed server.
    pub refreshed: Vec<RefreshReport>,
}

/// Result of a refresh.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RefreshReport {
    /// Current status of the server.
    pub server: ServerStatus,
    /// Number of added tools.
    pub tools_added: usize,
    /// Number of removed tools.
    pub tools_removed: usize,
    /// Failed lists; their previous contents stay.
    pub failed: Vec<FailedList>,
}

/// A failed list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedList {
    /// The list, named by its result member.
    pub list: Word,
    /// The error.
    pub message: Arc<str>,
}
