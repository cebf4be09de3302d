//! `/api/v1/pins`: approved definitions, their changes, and approval.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Word;

/// Query of `GET /api/v1/pins`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PinsQuery {
    /// Only pins of this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// Response of `GET /api/v1/pins`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PinsResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Pins by server.
    pub servers: Vec<ServerPins>,
}

/// Pins of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerPins {
    /// The server.
    pub server: String,
    /// Handling of unapproved definitions: `off`, `warn` or `block`.
    pub pin: Word,
    /// Why the approvals are unknown.
    pub error: Option<PinsError>,
    /// Tools.
    pub tools: Vec<PinEntry>,
    /// Prompts.
    pub prompts: Vec<PinEntry>,
    /// Resources.
    pub resources: Vec<PinEntry>,
    /// Resource templates.
    pub templates: Vec<PinEntry>,
    /// `instructions` and `serverInfo` of the server.
    pub introduction: Vec<PinEntry>,
}

/// Unreadable or unwritable approvals of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinsError {
    /// State, as in events: `unreadable` or `unsaved`.
    pub state: Word,
    /// What failed.
    pub message: String,
    /// Command that resolves it.
    pub hint: String,
}

/// A pinned definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinEntry {
    /// `tool`, `prompt`, `resource`, `template` or `introduction`.
    pub kind: Word,
    /// The server's own name or URI.
    pub name: String,
    /// Same as `name` for a tool; `None` for other kinds.
    pub tool: Option<String>,
    /// `approved`, `changed` or `quarantined`.
    pub state: Word,
    /// SHA-256 of the approved definition, in hex.
    pub approved: String,
    /// Time of the approval in milliseconds since 1970.
    pub approved_at_ms: u64,
    /// True if an operator approved the definition, false if it was approved at first sight.
    pub reviewed: bool,
    /// SHA-256 of the definition that the server has now.
    pub now: String,
    /// Time of the change in milliseconds since 1970; `None` if unchanged.
    pub since_ms: Option<u64>,
    /// True if the server changed the definition back.
    pub reverted: bool,
    /// Suspicious places in the definition.
    pub findings: Vec<PinFinding>,
}

/// A suspicious place in a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinFinding {
    /// Word for the finding.
    pub code: Word,
    /// Path of the member.
    pub place: String,
    /// What was found.
    pub detail: String,
}

/// Query of `GET /api/v1/pins/{server}/{name}/diff`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PinDiffQuery {
    /// Kind of the definition; default: `tool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Response of `GET /api/v1/pins/{server}/{name}/diff`; definitions have the exact bytes of the
/// server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PinDiffResponse {
    /// API version.
    pub v: u8,
    /// The server.
    pub server: String,
    /// The pin.
    #[serde(flatten)]
    pub pin: PinEntry,
    /// Changed members.
    pub changes: Vec<PinChange>,
    /// Approved definition; `None` if too long to store.
    pub old: Option<Box<RawValue>>,
    /// Latest differing definition, or the approved definition if none differed.
    pub new: Option<Box<RawValue>>,
}

/// A changed member of a definition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PinChange {
    /// Path of the member; empty for the whole definition.
    pub path: String,
    /// Approved value; `None` if added.
    pub old: Option<Box<RawValue>>,
    /// New value; `None` if removed.
    pub new: Option<Box<RawValue>>,
}

/// Body of `POST /api/v1/pins/accept`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinAcceptRequest {
    /// The server.
    pub server: String,
    /// Name of a definition; all definitions of the server without one.
    pub tool: Option<String>,
    /// Kind of the definition named by `tool`; default: `tool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word>,
    /// Hash of the definition to accept, so that no later change is accepted with it.
    pub hash: Option<String>,
}

/// Response of `POST /api/v1/pins/accept`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PinAcceptResponse {
    /// API version.
    pub v: u8,
    /// The server.
    pub server: String,
    /// Accepted definitions.
    pub accepted: Vec<AcceptedPin>,
}

/// An accepted definition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AcceptedPin {
    /// `tool`, `prompt`, `resource`, `template` or `introduction`.
    pub kind: Word,
    /// The server's own name or URI.
    pub name: String,
    /// Same as `name` for a tool; `None` for other kinds.
    pub tool: Option<String>,
    /// Hash approved before.
    pub old: String,
    /// Hash approved now.
    pub new: String,
}
