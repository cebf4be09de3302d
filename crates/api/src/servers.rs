//! `/api/v1/servers`: status of servers, and lifecycle operations on them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;

/// Response of `GET /api/v1/servers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServersResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Configured servers, sorted by name.
    pub servers: Vec<ServerStatus>,
    /// Configured servers that cannot run on this machine.
    #[serde(default)]
    pub broken: Vec<BrokenServer>,
}

/// Response of `GET /api/v1/servers/{name}` and of
/// `POST /api/v1/servers/{name}/start|stop|restart|reload`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// The server; after an operation, with its outcome.
    pub server: ServerStatus,
}

/// A configured server that cannot run on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokenServer {
    /// The name.
    pub name: Arc<str>,
    /// Why the server cannot run.
    pub reason: String,
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// The name.
    pub name: Arc<str>,
    /// The state; `probing` instead of `ready` while the breaker is half-open.
    pub state: Word,
    /// True while ready.
    pub active: bool,
    /// True for a server started by its first call.
    pub lazy: bool,
    /// The transport.
    pub transport: Word,
    /// The era: `legacy`, `modern`, or `auto` while unknown.
    pub era: Word,
    /// Program or address, without arguments and credentials.
    pub command: String,
    /// Address of an HTTP server, without credentials.
    pub url: Option<String>,
    /// Location of the server card, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Arc<str>>,
    /// Number of starts.
    pub generation: u64,
    /// Process id.
    pub pid: Option<u32>,
    /// Time since the link became ready.
    pub uptime_ms: Option<u64>,
    /// Number of processes; measured on request only.
    pub processes: Option<u64>,
    /// Resident memory of all processes; measured on request only.
    pub memory_bytes: Option<u64>,
    /// Number of tools in the catalog.
    pub tools: usize,
    /// Truncated lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<OmittedStatus>,
    /// Pin summary.
    #[serde(flatten)]
    pub pins: PinSummary,
    /// Source of the catalog entries: the current link, or the last link.
    pub manifest: Word,
    /// True if the entries are last known, because the server is down or starting.
    pub stale: bool,
    /// Calls in flight or waiting.
    pub ref_count: usize,
    /// Calls in flight at the server.
    pub in_flight: usize,
    /// Calls queued for a permit.
    pub queued: usize,
    /// Calls finished since the gateway started.
    pub calls: u64,
    /// Calls finished without a response of the server.
    pub errors: u64,
    /// Calls refused by a full queue, or timed out in the queue.
    pub sheds: u64,
    /// Error rate over the last five to ten minutes.
    pub error_rate: f64,
    /// Median duration of the calls in this window.
    pub p50_us: Option<u64>,
    /// 99th percentile of these durations.
    pub p99_us: Option<u64>,
    /// Restarts still counted against the budget.
    pub restart_count: u64,
    /// Consecutive failures seen by the breaker.
    pub consecutive_failures: u32,
    /// Isolation of links.
    pub isolation: Word,
    /// Number of dedicated links.
    pub own_links: usize,
    /// Why sessions have dedicated links, if caused by the server.
    pub isolated_because: Option<Word>,
    /// State of the breaker.
    pub circuit: Word,
    /// True after too many restarts.
    pub ejected: bool,
    /// Cached responses.
    #[serde(flatten)]
    pub cache: CacheStatus,
    /// Time until the next attempt: a start in backoff, or the end of the breaker's open period.
    pub retry_after_ms: Option<u64>,
    /// The last failure.
    pub last_error: Option<ServerLastError>,
    /// The limits.
    pub limits: ServerLimits,
    /// True if arguments may contain secrets, visible to every user of the machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub argv_secrets: bool,
    /// True if known secrets are redacted from results.
    #[serde(default = "enabled")]
    pub redact_results: bool,
    /// The sandbox; `None` for servers without a child process.
    pub sandbox: Option<SandboxStatus>,
}

impl ServerStatus {
    /// Returns true if the server failed and has not recovered.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.ejected
            || matches!(&*self.state, "backoff" | "ejected")
            || matches!(&*self.circuit, "open" | "half_open")
    }
}

/// Default for gateways that do not report a switch that is on by default.
const fn enabled() -> bool {
    true
}

/// The sandbox of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxStatus {
    /// Configured level.
    pub level: Word,
    /// Features missing in the kernel.
    pub lacks: Option<String>,
}

/// A list truncated at the server's limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OmittedStatus {
    /// The list, named by its result member.
    pub list: Word,
    /// Number of omitted entries seen.
    pub entries: usize,
    /// True if further pages were not read.
    pub more: bool,
}

/// Cached responses of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Number of entries.
    #[serde(rename = "cache_entries")]
    pub entries: usize,
    /// Total bytes.
    #[serde(rename = "cache_bytes")]
    pub bytes: usize,
    /// Calls served from the cache.
    #[serde(rename = "cache_hits")]
    pub hits: u64,
    /// Cacheable calls sent to the server.
    #[serde(rename = "cache_misses")]
    pub misses: u64,
    /// Entries evicted before expiry.
    #[serde(rename = "cache_evictions")]
    pub evictions: u64,
}

/// The last failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLastError {
    /// Error code of calls while the program is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Word>,
    /// Failure class.
    pub class: Word,
    /// Failure message.
    pub message: Arc<str>,
    /// Time since the failure.
    pub age_ms: u64,
}

/// Limits of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerLimits {
    /// Calls in flight.
    pub calls_max: usize,
    /// Queued calls.
    pub queue_max: usize,
    /// Entries per list.
    pub list_max: usize,
    /// Call timeout, unless the tool has its own.
    pub call_timeout_ms: u64,
    /// Start timeout.
    pub start_timeout_ms: u64,
    /// Restarts...
    pub restarts_max: u32,
    /// ...within this window.
    pub restart_window_ms: u64,
    /// Memory of all processes; `None` if unlimited.
    pub memory_bytes_max: Option<u64>,
    /// Processes; `None` without local processes.
    pub processes_max: Option<u64>,
    /// Largest writable file.
    pub file_bytes_max: Option<u64>,
    /// Open files per process.
    pub open_files_max: Option<u64>,
}

/// Pins of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinSummary {
    /// Handling of unapproved definitions.
    #[serde(rename = "pin")]
    pub mode: Word,
    /// Number of changed definitions.
    #[serde(rename = "pins_changed")]
    pub changed: usize,
    /// Number of new, suspicious definitions.
    #[serde(rename = "pins_quarantined")]
    pub quarantined: usize,
    /// Why the approvals are unknown.
    #[serde(rename = "pins_error")]
    pub error: Option<Arc<str>>,
}
