//! Size limits of responses, by request method.

use bowline_wire::mcp::method;

/// Longest list or result as a single message.
pub const LARGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Kind of a response, for the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// One of the four lists.
    List,
    /// A tool result.
    Result,
    /// A resource or a prompt.
    Content,
    /// Everything else.
    Other,
}

impl ResponseKind {
    /// Returns the response kind of a method.
    pub(crate) fn from_method(method: &str) -> Self {
        match method {
            method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::RESOURCES_TEMPLATES_LIST => Self::List,
            method::TOOLS_CALL => Self::Result,
            method::RESOURCES_READ | method::PROMPTS_GET => Self::Content,
            _ => Self::Other,
        }
    }
}

/// Limits of large responses; the usual limit applies if larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeResponseLimits {
    /// Bytes of a list.
    pub list_bytes_max: usize,
    /// Bytes of a tool result.
    pub result_bytes_max: usize,
    /// Bytes of a resource or a prompt.
    pub content_bytes_max: usize,
}

impl Default for LargeResponseLimits {
    fn default() -> Self {
        Self {
            list_bytes_max: LARGE_BYTES_MAX,
            result_bytes_max: 0,
            content_bytes_max: 0,
        }
    }
}

impl LargeResponseLimits {
    /// Returns the limit of a kind; at least `usual`.
    pub(crate) fn bytes_max(&self, kind: ResponseKind, usual: usize) -> usize {
        match kind {
            ResponseKind::List => self.list_bytes_max.max(usual),
            ResponseKind::Result => self.result_bytes_max.max(usual),
            ResponseKind::Content => self.content_bytes_max.max(usual),
            ResponseKind::Other => usual,
        }
    }
}
