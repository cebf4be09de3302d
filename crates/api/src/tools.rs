//! `/api/v1/tools`, `/api/v1/discover`, `/api/v1/search` and `/api/v1/exposure`: tools of servers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Word;

/// Query of `GET /api/v1/tools`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolsQuery {
    /// Only tools of this server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
}

/// Response of `GET /api/v1/tools`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolsResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Tools by server.
    pub tools: Vec<ToolEntry>,
    /// Servers with unknown tools.
    #[serde(default)]
    pub unlisted: Vec<UnlistedServer>,
}

/// A tool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ToolEntry {
    /// The server.
    pub server: Arc<str>,
    /// The server's own tool name.
    pub tool: Arc<str>,
    /// Name on `/mcp`.
    #[serde(default)]
    pub name: Arc<str>,
    /// Effect of a call, such as `read` or `write`.
    #[serde(default)]
    pub effect: Word,
    /// True for a definition kept from an earlier run, while the server is down or starting.
    #[serde(default)]
    pub stale: bool,
    /// Definition with the exact bytes of the server.
    pub definition: Box<RawValue>,
}

/// A server with unknown tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnlistedServer {
    /// The server.
    pub server: Arc<str>,
    /// State of the server.
    pub state: Word,
    /// Class of the last failure.
    pub class: Option<Word>,
    /// Message of the last failure.
    pub message: Option<Arc<str>>,
}

/// Query of `GET /api/v1/discover`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DiscoverQuery {
    /// Time to wait for servers that are starting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Response of `GET /api/v1/discover`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiscoverResponse {
    /// API version.
    pub v: u8,
    /// A tool, or a failed server, each.
    pub entries: Vec<DiscoveryEntry>,
}

/// A tool, or the error of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, from = "DiscoveryMembers")]
pub enum DiscoveryEntry {
    /// A tool.
    Tool {
        /// The server.
        server: Arc<str>,
        /// The server's own tool name.
        tool: Arc<str>,
        /// The input schema, as written by the server.
        schema: Option<Box<RawValue>>,
        /// The `_meta` of the definition, with the gateway's marks.
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Box<RawValue>>,
        /// True if last known, because the server is still starting.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        stale: bool,
    },
    /// A server without available tools.
    Failed {
        /// The server.
        server: Arc<str>,
        /// The error.
        error: DiscoveryError,
    },
}

/// Why a server's tools are unavailable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiscoveryError {
    /// Failure class.
    pub class: Word,
    /// Failure message.
    pub message: Arc<str>,
}

/// Members of both kinds of entries. An untagged enum cannot read [`RawValue`] directly, because
/// serde buffers the members of such an enum.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DiscoveryMembers {
    server: Arc<str>,
    tool: Arc<str>,
    schema: Option<Box<RawValue>>,
    #[serde(rename = "_meta")]
    meta: Option<Box<RawValue>>,
    stale: bool,
    error: Option<DiscoveryError>,
}

impl From<DiscoveryMembers> for DiscoveryEntry {
    fn from(members: DiscoveryMembers) -> Self {
        let DiscoveryMembers {
            server,
            tool,
            schema,
            meta,
            stale,
            error,
        } = members;
        match error {
            Some(error) => Self::Failed { server, error },
            None => Self::Tool {
                server,
                tool,
                schema,
                meta,
                stale,
            },
        }
    }
}

/// Query of `GET /api/v1/search`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SearchQuery {
    /// Words about what the tool should do.
    pub q: String,
    /// Maximum number of tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Response of `GET /api/v1/search`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SearchResponse {
    /// API version.
    #[serde(default)]
    pub v: u8,
    /// Tools, best match first.
    pub tools: Vec<FoundTool>,
}

/// A search result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoundTool {
    /// Visible name.
    pub name: String,
    /// The server.
    pub server: String,
    /// The server's own name.
    pub tool: String,
    /// Signature on a single line.
    pub signature: String,
    /// Beginning of the description.
    pub description: String,
    /// Effect of a call.
    pub effect: Word,
    /// Score; comparable within a single search.
    pub score: f32,
}

/// Response of `GET /api/v1/exposure`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExposureResponse {
    /// API version.
    pub v: u8,
    /// Configured exposure: `all`, `search` or `auto`.
    pub expose: Word,
    /// Number of usable tools.
    pub tools: usize,
    /// Estimated tokens of a list of all of them.
    pub tokens: usize,
    /// Number of listed tools, including meta tools.
    pub listed: usize,
    /// Estimated tokens of the actual list.
    pub listed_tokens: usize,
}
