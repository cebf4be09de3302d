//! Meta tools for large tool sets: find, describe and call tools instead of listing them all.
//!
//! Hides nothing and grants nothing. Search results are the items visible in the full list, and a
//! call through `call_tool` passes the same stages, rules, counters and audit as a direct call.

mod call_tool;
mod tool_search;

use bowline_core::call::{CallReply, CallRequest, CallSubject, EndpointScope};
use bowline_core::policy::ExposeMode;
use bowline_wire::ByteSpan;
use bowline_wire::object;
use bytes::Bytes;

use crate::catalog::{ListKind, RenderedList};
use crate::local_reply;

pub use bowline_api::tools::FoundTool;
pub(crate) use call_tool::{wrapped_call, wrapped_tool_name};
pub use tool_search::FOUND_MAX;
pub(crate) use tool_search::{ToolSearchIndex, handle_describe, handle_find};

/// Finds tools.
pub const FIND_TOOLS: &str = "find_tools";
/// Describes a tool.
pub const DESCRIBE_TOOL: &str = "describe_tool";
/// Calls a tool.
pub const CALL_TOOL: &str = "call_tool";

/// Definitions of the meta tools, on a single line, since they are spliced into lists unchanged.
const DEFINITIONS: &str = concat!(
    r#"{"name":"find_tools","title":"Find tools","description":"Finds tools by what they do. "#,
    r#"Most tools are not listed here: describe what you want to do in a few words, then call "#,
    r#"what fits with call_tool. Returns names, signatures and descriptions.","inputSchema":{"#,
    r#""type":"object","properties":{"query":{"type":"string","description":"What the tool "#,
    r#"should do, in a few words"},"limit":{"type":"integer","minimum":1,"maximum":50,"#,
    r#""default":8,"description":"How many to return"},"server":{"type":"string","#,
    r#""description":"Only tools of this server"}},"required":["query"]},"#,
    r#""annotations":{"readOnlyHint":true,"openWorldHint":false}},"#,
    r#"{"name":"describe_tool","title":"Describe a tool","description":"Returns the whole "#,
    r#"definition of one tool, with the schema of its arguments.","inputSchema":{"type":"object","#,
    r#""properties":{"name":{"type":"string","description":"The name of the tool, as find_tools "#,
    r#"returns it"}},"required":["name"]},"annotations":{"readOnlyHint":true,"#,
    r#""openWorldHint":false}},"#,
    r#"{"name":"call_tool","title":"Call a tool","description":"Calls a tool that is not listed "#,
    r#"here, by the name that find_tools returns.","inputSchema":{"type":"object","properties":{"#,
    r#""name":{"type":"string","description":"The name of the tool"},"arguments":{"type":"#,
    r#""object","description":"Its arguments, as its schema wants them"}},"required":["name"]}}"#,
);

/// A meta tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaTool {
    Find,
    Describe,
    Call,
}

impl MetaTool {
    /// Returns the meta tool of a call. No server tool has such a name: visible tool names contain
    /// a separator.
    pub(crate) fn from_call(call: &CallRequest) -> Option<Self> {
        Self::from_subject(&call.scope, &call.subject)
    }

    /// Returns the meta tool of a subject.
    pub(crate) fn from_subject(scope: &EndpointScope, subject: &CallSubject) -> Option<Self> {
        let CallSubject::Tool(name) = subject else {
            return None;
        };
        match name.as_ref() {
            FIND_TOOLS if scope.is_multi_server() => Some(Self::Find),
            DESCRIBE_TOOL if scope.is_multi_server() => Some(Self::Describe),
            CALL_TOOL if scope.is_multi_server() => Some(Self::Call),
            _ => None,
        }
    }
}

/// Returns the arguments of a call.
pub(crate) fn call_arguments(call: &CallRequest) -> &[u8] {
    params_arguments(&call.message.params)
}

fn params_arguments(params: &[u8]) -> &[u8] {
    object::field(params, "arguments").map_or(b"{}", |at| at.slice(params))
}

/// Inserts the meta tools before the pinned favourites of a list.
pub(crate) fn with_meta_tools(favourites: &RenderedList) -> RenderedList {
    let whole = &favourites.result;
    let list =
        object::field(whole, ListKind::Tools.member()).unwrap_or(ByteSpan { start: 0, end: 0 });
    let inside = list.start + 1;
    let (head, tail) = whole.split_at_checked(inside).unwrap_or((whole, b""));
    let mut result = Vec::with_capacity(whole.len() + DEFINITIONS.len() + 1);
    result.extend_from_slice(head);
    result.extend_from_slice(DEFINITIONS.as_bytes());
    if !tail.trim_ascii_start().starts_with(b"]") {
        result.push(b',');
    }
    result.extend_from_slice(tail);
    favourites.with_result(Bytes::from(result))
}

/// How many tools a principal sees listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposureSummary {
    /// Configured exposure.
    pub expose: ExposeMode,
    /// Number of usable tools.
    pub tools: usize,
    /// Bytes of the full list.
    pub bytes: usize,
    /// Number of listed tools, including meta tools.
    pub listed: usize,
    /// Bytes of the actual list.
    pub listed_bytes: usize,
}

/// Estimates the tokens of a list: four bytes of JSON per token.
#[must_use]
pub const fn estimate_tokens(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

/// Returns the error for a malformed `call_tool`.
pub(crate) fn malformed_call_reply(call: &CallRequest) -> CallReply {
    let message = "call_tool needs the name of a tool, and its arguments as an object";
    local_reply::error_reply(message, &call.message.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool_list(tools: &str) -> RenderedList {
        RenderedList::default().with_result(Bytes::from(format!("{{\"tools\":[{tools}]}}")))
    }

    #[test]
    fn meta_tools_precede_favourites() {
        for (tools, count) in [("", 3), (r#"{"name":"s__a"}"#, 4)] {
            let list = with_meta_tools(&tool_list(tools));
            let list: serde_json::Value = serde_json::from_slice(&list.result).unwrap();
            let list = list["tools"].as_array().unwrap();
            assert_eq!(list.len(), count);
            let names: Vec<_> = list.iter().map(|tool| tool["name"].as_str()).collect();
            assert_eq!(
                names.get(..3),
                Some(&[Some(FIND_TOOLS), Some(DESCRIBE_TOOL), Some(CALL_TOOL)][..])
            );
        }
    }

    #[test]
    fn meta_tools_cost_few_tokens() {
        assert!(
            estimate_tokens(DEFINITIONS.len()) < 500,
            "{}",
            DEFINITIONS.len()
        );
    }
}
