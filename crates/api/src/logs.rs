//! `/api/v1/logs`: stderr output of servers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::is_zero;

/// Query of `GET /api/v1/logs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogsQuery {
    /// Only lines of this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Only lines after this sequence number; the newest lines without one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub after: u64,
    /// Maximum number of lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Time to wait for a line if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u64,
}

/// Response of `GET /api/v1/logs`. A client that passes lines on unread names another type for
/// them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogsResponse<L = LogLine> {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Lines, oldest first.
    pub lines: Vec<L>,
    /// Value of `after` for the lines that follow.
    pub next: u64,
}

/// A line of a server's stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogLine {
    /// Sequence number among the lines of all servers.
    pub seq: u64,
    /// The server.
    pub server: Arc<str>,
    /// Time in milliseconds since 1970.
    pub at_ms: u64,
    /// The line without its end.
    pub text: Arc<str>,
}
