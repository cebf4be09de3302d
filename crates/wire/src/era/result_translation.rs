//! Translates results between eras, and classifies results by `resultType`.

use std::borrow::Cow;

use bowline_core::cache::{CacheHint, CacheScope};

use crate::mcp::{meta, method};
use crate::object::{self, is_object};
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::{ByteSpan, write_string};

mod tool_definition;

pub use tool_definition::tool_to_legacy;

/// The `resultType` of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// Final result.
    Complete,
    /// Input required: the request must be sent again with responses.
    InputRequired,
    /// A task handle.
    Task,
    /// Unknown; not to be treated as a result.
    Unknown,
    /// Absent: a legacy result, final.
    Absent,
}

impl ResultKind {
    /// Whether the result ends its request.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Absent)
    }
}

/// Returns the kind of a result.
#[must_use]
pub fn result_kind(result: &[u8]) -> ResultKind {
    let Some(at) = object::field(result, "resultType") else {
        return ResultKind::Absent;
    };
    match object::parse_string(at.slice(result)).as_deref() {
        Some("complete") => ResultKind::Complete,
        Some("input_required") => ResultKind::InputRequired,
        Some("task") => ResultKind::Task,
        _ => ResultKind::Unknown,
    }
}

/// Whether results of a method require a cache hint.
#[must_use]
pub fn needs_cache_hint(method: &str) -> bool {
    matches!(
        method,
        method::DISCOVER
            | method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::RESOURCES_TEMPLATES_LIST
            | method::RESOURCES_READ
    )
}

/// Additional data for translating a legacy result.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResultContext<'a> {
    /// The server info: an object.
    pub server_info: Option<&'a [u8]>,
    /// The cache hint. If absent, the result's own hint applies; without any hint the result is
    /// uncacheable.
    pub hint: Option<CacheHint>,
}

/// Translates a legacy result to a complete modern result.
#[must_use]
pub fn to_modern(result: &[u8], method: &str, context: &ResultContext<'_>) -> Vec<u8> {
    let fields = ResultFields::from_result(result);
    let mut front = MemberList::from_member("resultType", b"\"complete\"");
    let hinted = needs_cache_hint(method);
    let own = hinted && context.hint.is_none() && fields.has_valid_hint(result);
    if hinted && !own {
        let hint = context.hint.map(|hint| (hint.ttl.as_millis(), hint.scope));
        let (ttl_ms, sharing) = hint.unwrap_or((0, CacheScope::Private));
        let ttl_ms = u64::try_from(ttl_ms).unwrap_or(u64::MAX);
        let scope: &[u8] = match sharing {
            CacheScope::Public => b"\"public\"",
            CacheScope::Private => b"\"private\"",
        };
        front.push("ttlMs", itoa::Buffer::new().format(ttl_ms).as_bytes());
        front.push("cacheScope", scope);
    }
    let mut editor = ObjectEditor::new(result);
    let mut replaces_meta = false;
    if let Some(info) = context.server_info {
        let member = MemberList::from_member(meta::SERVER_INFO, info);
        match fields.meta {
            Some(at) if is_object(at.slice(result)) => {
                if object::field(at.slice(result), meta::SERVER_INFO).is_none() {
                    editor.insert_first(at, member);
                }
            }
            other => {
                replaces_meta = other.is_some();
                front.push("_meta", &member.into_object());
            }
        }
    }
    let is_object = editor.retain(editor.whole(), |key, _| match key {
        b"resultType" => false,
        b"ttlMs" | b"cacheScope" => !hinted || own,
        b"_meta" => !replaces_meta,
        _ => true,
    });
    if !is_object {
        // Invalid in both eras: replaced by an empty result.
        return front.into_object();
    }
    editor.insert_first(editor.whole(), front);
    editor.finish()
}

/// Translates a complete modern result to legacy. Structured content must be an object there; a
/// non-object is dropped, and added as text if the result has none.
#[must_use]
pub fn to_legacy<'a>(result: &'a [u8], method: &str) -> Cow<'a, [u8]> {
    let mut structured = None;
    let mut editor = ObjectEditor::new(result);
    let is_call = method == method::TOOLS_CALL;
    editor.retain(editor.whole(), |key, value| match key {
        b"resultType" => false,
        b"ttlMs" | b"cacheScope" => !needs_cache_hint(method),
        b"structuredContent" if is_call && !is_object(value.slice(result)) => {
            structured = Some(value);
            false
        }
        _ => true,
    });
    if let Some(value) = structured {
        add_text_block(&mut editor, value);
    }
    editor.finish_cow()
}

/// Adds a value as a text block, if the result has no text.
fn add_text_block(editor: &mut ObjectEditor<'_>, value: ByteSpan) {
    let result = editor.text();
    let Some(content) = object::field(result, "content") else {
        return;
    };
    let blocks = content.slice(result);
    let is_text = |block: ByteSpan| {
        let block = block.slice(blocks);
        object::text_field(block, "type").as_deref() == Some("text")
    };
    let value = value.slice(result);
    if value == b"null" || object::items(blocks).any(is_text) {
        return;
    }
    let Ok(value) = std::str::from_utf8(value) else {
        return;
    };
    let mut block = br#"[{"type":"text","text":"#.to_vec();
    write_string(&mut block, value);
    block.push(b'}');
    if object::items(blocks).next().is_some() {
        block.push(b',');
    }
    if blocks.first() == Some(&b'[') {
        let bracket = ByteSpan {
            start: content.start,
            end: content.start + 1,
        };
        editor.replace(bracket, block);
    }
}

/// Writes an empty result, optionally naming the ended subscription.
#[must_use]
pub fn empty_result(subscription: Option<&[u8]>) -> Vec<u8> {
    let mut members = MemberList::from_member("resultType", b"\"complete\"");
    if let Some(id) = subscription {
        let member = MemberList::from_member(meta::SUBSCRIPTION_ID, id);
        members.push("_meta", &member.into_object());
    }
    members.into_object()
}

/// Spans of the members that differ between eras.
#[derive(Clone, Copy, Debug, Default)]
struct ResultFields {
    meta: Option<ByteSpan>,
    ttl_ms: Option<ByteSpan>,
    cache_scope: Option<ByteSpan>,
}

impl ResultFields {
    fn from_result(result: &[u8]) -> Self {
        let mut parsed = Self::default();
        for (key, value) in object::fields(result) {
            match &*key {
                "_meta" => parsed.meta = Some(value),
                "ttlMs" => parsed.ttl_ms = Some(value),
                "cacheScope" => parsed.cache_scope = Some(value),
                _ => {}
            }
        }
        parsed
    }

    /// Whether both hint members are present and valid.
    fn has_valid_hint(&self, result: &[u8]) -> bool {
        let (Some(ttl_ms), Some(scope)) = (self.ttl_ms, self.cache_scope) else {
            return false;
        };
        let ttl_ms = ttl_ms.slice(result);
        let scope = scope.slice(result);
        !ttl_ms.is_empty()
            && ttl_ms.iter().all(u8::is_ascii_digit)
            && (scope == b"\"public\"" || scope == b"\"private\"")
    }
}

#[cfg(test)]
mod tests;
