//! How long a response may be, by what it answers.

use bowline_wire::mcp::method;

/// Bytes of the longest list or result that is read as one message.
pub const LARGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a request asks for, as far as the length of its response goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// One of the four lists.
    List,
    /// The result of a tool.
    Result,
    /// A resource or a prompt.
    Content,
    /// Everything else.
    Other,
}

impl ResponseKind {
    /// Returns what responses to `method` are.
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

/// The longest responses of those kinds that may be longer than others; the usual limit of a link
/// counts where it is larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargeLimits {
    /// Bytes of a list.
    pub list_bytes_max: usize,
    /// Bytes of the result of a tool.
    pub result_bytes_max: usize,
    /// Bytes of a resource or a prompt.
    pub content_bytes_max: usize,
}

impl Default for LargeLimits {
    fn default() -> Self {
        Self {
            list_bytes_max: LARGE_BYTES_MAX,
            result_bytes_max: 0,
            content_bytes_max: 0,
        }
    }
}

impl LargeLimits {
    /// Returns the limit of one kind; never less than the `usual` one.
    pub(crate) fn bytes_max(&self, kind: ResponseKind, usual: usize) -> usize {
        match kind {
            ResponseKind::List => self.list_bytes_max.max(usual),
            ResponseKind::Result => self.result_bytes_max.max(usual),
            ResponseKind::Content => self.content_bytes_max.max(usual),
            ResponseKind::Other => usual,
        }
    }
}
