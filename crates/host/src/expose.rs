//! Large tool sets: instead of every definition, tools that find, describe and call the others.
//!
//! It hides nothing and grants nothing. What is found is what the same principal would see in a
//! whole list, and a call by way of `call_tool` is the call itself: it takes the same road, under
//! the same rules, and is counted and written down as such.

mod found;
mod inner;

use bowline_core::call::{Call, Reply, Scope, Subject};
use bowline_core::policy::Expose;
use bowline_wire::object;
use bowline_wire::span::Span;
use bytes::Bytes;

use crate::catalog::{ListKind, Listing};
use crate::reply;

pub use found::{FOUND_MAX, Found};
pub(crate) use found::{Index, describe, find};
pub(crate) use inner::{inner, tool_in};

/// Finds tools.
pub const FIND_TOOLS: &str = "find_tools";
/// Describes one of them.
pub const DESCRIBE_TOOL: &str = "describe_tool";
/// Calls one of them.
pub const CALL_TOOL: &str = "call_tool";

/// What a model is told of them. One line, since it is spliced into lists as it is.
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

/// One of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meta {
    Find,
    Describe,
    Call,
}

impl Meta {
    /// Returns which of them a call is for. No tool of a server has such a name: those have a
    /// separator in them.
    pub(crate) fn of(call: &Call) -> Option<Self> {
        Self::named(&call.scope, &call.subject)
    }

    /// The same by the name that is called.
    pub(crate) fn named(scope: &Scope, subject: &Subject) -> Option<Self> {
        let Subject::Tool(name) = subject else {
            return None;
        };
        match name.as_ref() {
            FIND_TOOLS if scope.is_shared() => Some(Self::Find),
            DESCRIBE_TOOL if scope.is_shared() => Some(Self::Describe),
            CALL_TOOL if scope.is_shared() => Some(Self::Call),
            _ => None,
        }
    }
}

/// Returns the arguments of a call.
pub(crate) fn arguments(call: &Call) -> &[u8] {
    arguments_in(&call.params)
}

fn arguments_in(params: &[u8]) -> &[u8] {
    object::field(params, "arguments").map_or(b"{}", |at| at.of(params))
}

/// Puts the three before the favourites of a list.
pub(crate) fn with_meta(favourites: &Listing) -> Listing {
    let whole = &favourites.result;
    let list = object::field(whole, ListKind::Tools.member()).unwrap_or(Span { start: 0, end: 0 });
    let inside = list.start + 1;
    let (head, tail) = whole.split_at_checked(inside).unwrap_or((whole, b""));
    let mut result = Vec::with_capacity(whole.len() + DEFINITIONS.len() + 1);
    result.extend_from_slice(head);
    result.extend_from_slice(DEFINITIONS.as_bytes());
    if !tail.trim_ascii_start().starts_with(b"]") {
        result.push(b',');
    }
    result.extend_from_slice(tail);
    favourites.with(Bytes::from(result))
}

/// How much of its tools somebody is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// What the owner of the gateway wants.
    pub expose: Expose,
    /// Tools that may be used.
    pub tools: usize,
    /// Bytes of a list of all of them.
    pub bytes: usize,
    /// Tools that are listed, those that find others included.
    pub listed: usize,
    /// Bytes of that list.
    pub listed_bytes: usize,
}

/// What a list costs who reads it: about a token for every four bytes of JSON.
#[must_use]
pub const fn tokens(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

/// Says what is wrong with a `call_tool` that is no call.
pub(crate) fn no_call(call: &Call) -> Reply {
    let said = "call_tool needs the name of a tool, and its arguments as an object";
    reply::wrong(said, &call.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(tools: &str) -> Listing {
        Listing::default().with(Bytes::from(format!("{{\"tools\":[{tools}]}}")))
    }

    #[test]
    fn the_three_stand_before_the_favourites() {
        for (tools, count) in [("", 3), (r#"{"name":"s__a"}"#, 4)] {
            let list = with_meta(&listing(tools));
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
    fn the_three_cost_less_than_a_few_tools() {
        assert!(tokens(DEFINITIONS.len()) < 500, "{}", DEFINITIONS.len());
    }
}
