//! `/api/v1/executors`: connection state and traffic of executors.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;

/// Response of `GET /api/v1/executors`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorsResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// Executors that are configured or were connected.
    pub executors: Vec<ExecutorEntry>,
}

/// An executor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorEntry {
    /// The name.
    pub name: Arc<str>,
    /// True while connected.
    pub connected: bool,
    /// Direction of the connection: `joined` or `dialled`; `None` if never connected.
    pub via: Option<Word>,
    /// Protocol of the connection.
    pub protocol: Word,
    /// Address at the other end.
    pub peer: Option<Arc<str>>,
    /// Name and version of the executor's software.
    pub software: Arc<str>,
    /// Names of the servers that the executor allows.
    pub servers: Vec<Arc<str>>,
    /// Names of the secrets that the executor has.
    pub secrets: Vec<Arc<str>>,
    /// Configured servers that run on the executor.
    pub used_by: Vec<Arc<str>>,
    /// Number of open streams.
    pub streams: u64,
    /// Number of streams opened so far.
    pub opened: u64,
    /// Bytes sent to the executor.
    pub sent_bytes: u64,
    /// Bytes received from the executor.
    pub received_bytes: u64,
    /// Time of the last change of the connection, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Why the last connection ended.
    pub lost: Option<Arc<str>>,
}
