//! The two protocol eras, and their differences for a call.

use std::sync::Arc;

use crate::task_table::SealedTaskId;

/// The protocol era. The edge (towards clients) and the links (towards servers) translate between
/// eras; bytes in between carry their era.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Era {
    /// Handshake and sessions: 2025-11-25 and before.
    #[default]
    Legacy,
    /// Stateless: every request is self-contained (2026-07-28).
    Modern,
}

impl Era {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// The configured era of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EraSetting {
    /// Unknown: negotiated, and remembered until proved wrong.
    #[default]
    Auto,
    /// Fixed, without negotiation.
    Only(Era),
}

/// Data of a modern call besides the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatelessContext {
    /// The `Mcp-Param-*` headers; absent for a transport without headers.
    pub header_claims: Option<Vec<HeaderClaim>>,
    /// Whether the call continues a request that ended with `input_required`. The response is
    /// specific to the continuation and never cached.
    pub is_continuation: bool,
    /// The opened sealed task id, if valid.
    pub task_id: Option<SealedTaskId>,
}

/// One header that repeats an argument: `Mcp-Param-{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderClaim {
    /// The header name after `mcp-param-`, in lower case.
    pub name: Box<str>,
    /// The raw value, not decoded.
    pub value: Box<[u8]>,
}

/// A tool argument repeated in a header, by the tool's definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParam {
    /// The header name after `Mcp-Param-`, as in the definition.
    pub name: Box<str>,
    /// The path of keys from the arguments to the value.
    pub path: Box<[Box<str>]>,
}

/// The header parameters of one tool; absent for nearly all tools.
pub type HeaderParams = Option<Arc<[HeaderParam]>>;
