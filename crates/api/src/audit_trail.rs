//! `/api/v1/audit`: rows of the audit trail, and verification of their hash chains.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::is_zero;

/// Query of `GET /api/v1/audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditQuery {
    /// `next` of an earlier response; the newest rows without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Time to wait for a row if there is none after `after`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wait_ms: u64,
    /// Only rows of this principal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// Only rows of this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Only rows of this kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only rows from this time on, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<u64>,
    /// Only rows before this time, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ms: Option<u64>,
}

/// Response of `GET /api/v1/audit`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Rows with the exact bytes that their hashes cover, and the hash as last member; the members
    /// are those of `bowline_journal::audit::AuditRow`.
    pub rows: Vec<Box<RawValue>>,
    /// Value of `after` for the rows that follow.
    pub next: String,
}

/// Query of `GET` and `POST /api/v1/audit/verify`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditVerifyQuery {
    /// `SEQ:HASH` of a head noted before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect: Option<String>,
    /// The same for the ring of denials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expect_denials: Option<String>,
}

/// Response of `GET` and `POST /api/v1/audit/verify`. The fields of the report beside `denials` are
/// about the ring of calls, except `ok`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditVerifyResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// True if both rings are intact.
    pub ok: bool,
    /// Report on the ring of calls.
    #[serde(flatten)]
    pub calls: AuditRingCounts,
    /// Report on the ring of denials.
    pub denials: AuditRingReport,
}

/// Report on one ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRingReport {
    /// True if the ring is intact.
    pub ok: bool,
    /// Rows and head.
    #[serde(flatten)]
    pub counts: AuditRingCounts,
}

/// Rows of one ring, its head and its first damaged row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRingCounts {
    /// Number of rows.
    pub rows: u64,
    /// Sequence number of the first row.
    pub first: u64,
    /// The last row.
    pub head: AuditRingHead,
    /// Number of files.
    pub files: u64,
    /// Number of rows that stand for lost rows.
    pub gaps: u64,
    /// Number of lost rows.
    pub lost: u64,
    /// Number of rows evicted because of age or size.
    pub let_go: u64,
    /// Number of those evicted before their minimum age.
    pub let_go_early: u64,
    /// Number of rows that stand for several events.
    pub merged: u64,
    /// Number of events in these rows.
    pub coalesced: u64,
    /// First damaged row; `None` if intact.
    pub broken: Option<AuditRingBreak>,
}

/// The last row of a ring; noted by `SEQ:HASH`, it proves later that nothing before it changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRingHead {
    /// Sequence number.
    pub seq: u64,
    /// Chain hash in hex.
    pub hash: String,
}

/// A damaged row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRingBreak {
    /// Sequence number.
    pub seq: u64,
    /// Damage, such as `changed`, `removed`, `inserted` or `truncated`.
    pub reason: String,
    /// File of the row, if known.
    pub file: Option<String>,
}
