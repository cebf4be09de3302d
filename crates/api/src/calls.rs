//! `/api/v1/call`: a tool call.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Word;

/// Body of `POST /api/v1/call`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCallRequest {
    /// The server.
    pub server: String,
    /// The server's own tool name.
    pub tool: String,
    /// Deadline in milliseconds from now; without one, the server's call timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Key under which a repeated call returns the recorded result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Arguments, passed on byte by byte; default: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RawValue>>,
}

/// Response of `POST /api/v1/call`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolCallResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// The server.
    #[serde(default)]
    pub server: String,
    /// The server's own tool name.
    #[serde(default)]
    pub tool: String,
    /// Source of the result, such as `live`, `cache`, `queued` or `recorded`.
    #[serde(default)]
    pub origin: Word,
    /// Duration in microseconds.
    #[serde(default)]
    pub duration_us: u64,
    /// `CallToolResult` with the exact bytes of the server.
    pub result: Box<RawValue>,
}
