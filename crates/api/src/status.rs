//! `/api/v1/status`: the gateway as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;
use crate::outbox::ServerQueueView;
use crate::servers::{BrokenServer, ServerStatus};

/// Response of `GET /api/v1/status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusResponse {
    /// API version.
    pub v: u8,
    /// Version of the gateway.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Time since the start in milliseconds.
    pub uptime_ms: u64,
    /// Base URL.
    pub url: String,
    /// Path of the config file.
    pub config: Option<String>,
    /// True if any local process may call tools (`--insecure-no-auth`).
    pub insecure_no_auth: bool,
    /// Number of open sessions.
    pub sessions: u64,
    /// Number of open streams of sessions.
    pub streams: u64,
    /// Configured servers, sorted by name.
    pub servers: Vec<ServerStatus>,
    /// Configured servers that cannot run on this machine.
    pub broken: Vec<BrokenServer>,
    /// Why the config file as it is now is not in force.
    pub config_error: Option<Arc<str>>,
    /// Warning about servers with one process for several principals.
    pub sharing: Option<Arc<str>>,
    /// Number of tokens that expire within days.
    pub tokens_ending: u64,
    /// Sandbox of the machine.
    pub sandbox: SandboxSupport,
    /// The journal.
    pub journal: JournalStatus,
    /// Queued calls; `None` while the journal is unreadable.
    pub outbox: Option<OutboxCounts>,
    /// Peers of the broker.
    pub broker: Option<BrokerCounts>,
    /// Executors.
    pub executors: Option<ExecutorCounts>,
    /// The audit trail.
    pub audit: AuditStatus,
    /// Use of shared resources by principals, by name of the resource.
    pub shares: BTreeMap<String, ShareUsage>,
}

/// Support of the kernel for sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSupport {
    /// Landlock ABI version; 0 without Landlock.
    pub landlock_abi: u32,
}

/// State of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalStatus {
    /// Name of the engine.
    pub engine: Word,
    /// `good`, `full`, `poisoned` or `replaced`; calls are queued only while `good`.
    pub health: Word,
    /// Why the journal failed.
    pub reason: Option<Arc<str>>,
    /// Number of lanes stopped by a damaged call.
    pub stopped: u64,
    /// The first of these lanes.
    pub stopped_lanes: Vec<StoppedLaneEntry>,
}

/// A lane stopped by a damaged call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoppedLaneEntry {
    /// Name of the lane.
    pub lane: String,
    /// The damage.
    pub reason: Arc<str>,
}

/// Queued calls of all servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutboxCounts {
    /// Number of queued calls.
    pub queued: u64,
    /// Number of dead calls.
    pub dead: u64,
    /// Age of the oldest in milliseconds.
    pub oldest_age_ms: Option<u64>,
    /// The same by server.
    pub servers: BTreeMap<Arc<str>, ServerQueueView>,
}

/// Peers of the broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerCounts {
    /// Number of connected peers.
    pub peers: u64,
    /// Number of servers that they offer.
    pub offered: u64,
}

/// Executors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorCounts {
    /// Number of executors that are configured or were connected.
    pub known: u64,
    /// Number of connected executors.
    pub connected: u64,
}

/// State of the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditStatus {
    /// `ok`, `degraded`, or `off` without a trail.
    pub state: Word,
    /// Counts of the trail; absent without a trail.
    #[serde(flatten)]
    pub trail: Option<AuditTrailStatus>,
}

/// Counts of the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditTrailStatus {
    /// Why rows are being lost.
    #[serde(default)]
    pub reason: Option<Arc<str>>,
    /// Number of lost rows.
    pub lost: u64,
    /// Number of rows waiting to be written.
    #[serde(default)]
    pub waiting: u64,
    /// Sequence number of the last row.
    #[serde(default)]
    pub seq: u64,
    /// The ring of denials.
    #[serde(default)]
    pub denials: DenialsRingStatus,
    /// The export; `None` if not configured.
    #[serde(default)]
    pub export: Option<AuditExportStatus>,
}

/// Counts of the ring of denials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DenialsRingStatus {
    /// Sequence number of the last row.
    pub seq: u64,
    /// Number of lost rows.
    pub lost: u64,
}

/// Counts of exported rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditExportStatus {
    /// Number of sent rows.
    pub sent: u64,
    /// Number of rows that could not be sent.
    pub lost: u64,
}

/// Use of one shared resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareUsage {
    /// Limit for all principals together.
    pub limit: u64,
    /// Limit for one principal.
    pub principal_limit: u64,
    /// Part reserved for the owner.
    pub owner_reserve: u64,
    /// Amount in use.
    pub used: u64,
    /// Number of refusals since the start.
    pub refused: u64,
    /// Number of principals that hold something.
    pub holders: u64,
    /// Amounts of the largest holders.
    pub by_principal: BTreeMap<String, u64>,
}
