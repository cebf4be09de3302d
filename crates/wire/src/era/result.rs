//! Results of one era for a reader of the other, and what kind of result one is.

use std::borrow::Cow;

use bowline_core::cache::{Hint, Sharing};

use super::change::{Change, Fate, applied, is_object, literal, push_member, rewrite, whole};
use crate::mcp::{meta, method};
use crate::object;
use crate::span::Span;
use crate::splice::write_string;

mod definition;
pub use definition::tool_to_legacy;

/// What a result says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultKind {
    /// The end of its request.
    Complete,
    /// A question: its request is to be sent again with the answer.
    InputRequired,
    /// The name of work that goes on.
    Task,
    /// Something that nobody here knows, which a client must not take for a result.
    Unknown,
    /// It does not say: a result of the legacy era, and the end of its request.
    Absent,
}

impl ResultKind {
    /// Whether the request of such a result is over.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Complete | Self::Absent)
    }
}

/// Returns what a result says that it is.
#[must_use]
pub fn kind(result: &[u8]) -> ResultKind {
    let Some(at) = object::field(result, "resultType") else {
        return ResultKind::Absent;
    };
    match object::string(at.of(result)).as_deref() {
        Some("complete") => ResultKind::Complete,
        Some("input_required") => ResultKind::InputRequired,
        Some("task") => ResultKind::Task,
        _ => ResultKind::Unknown,
    }
}

/// Whether the results of a method must say how long they stay good.
#[must_use]
pub fn is_hinted(method: &str) -> bool {
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

/// What is known of a result of the legacy era beside itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completing<'a> {
    /// Who the server is: an object.
    pub server_info: Option<&'a [u8]>,
    /// How long the result stays good. Where absent, what the result says itself holds, and where
    /// it says nothing, it is not to be kept.
    pub hint: Option<Hint>,
}

/// Writes a result of the legacy era as a complete one of the modern.
#[must_use]
pub fn to_modern(result: &[u8], method: &str, known: &Completing<'_>) -> Vec<u8> {
    let seen = Seen::of(result);
    let mut front = Vec::new();
    push_member(&mut front, "resultType", b"\"complete\"");
    let hinted = is_hinted(method);
    let own = hinted && known.hint.is_none() && seen.is_well_hinted(result);
    if hinted && !own {
        let hint = known.hint.map(|hint| (hint.ttl.as_millis(), hint.sharing));
        let (ttl_ms, sharing) = hint.unwrap_or((0, Sharing::Private));
        let ttl_ms = u64::try_from(ttl_ms).unwrap_or(u64::MAX);
        let scope: &[u8] = match sharing {
            Sharing::Public => b"\"public\"",
            Sharing::Private => b"\"private\"",
        };
        push_member(
            &mut front,
            "ttlMs",
            itoa::Buffer::new().format(ttl_ms).as_bytes(),
        );
        push_member(&mut front, "cacheScope", scope);
    }
    let mut changes = Vec::new();
    let mut meta_goes = false;
    if let Some(info) = known.server_info {
        let mut member = Vec::with_capacity(info.len() + 64);
        push_member(&mut member, meta::SERVER_INFO, info);
        match seen.meta {
            Some(at) if is_object(at.of(result)) => {
                if object::field(at.of(result), meta::SERVER_INFO).is_none() {
                    rewrite(result, at, member, |_, _| Fate::Stays, &mut changes);
                }
            }
            other => {
                meta_goes = other.is_some();
                push_member(&mut front, "_meta", &[b"{", &*member, b"}"].concat());
            }
        }
    }
    let fate = |key: &[u8], _| match key {
        b"resultType" => Fate::Goes,
        b"ttlMs" | b"cacheScope" if hinted && !own => Fate::Goes,
        b"_meta" if meta_goes => Fate::Goes,
        _ => Fate::Stays,
    };
    if !rewrite(result, whole(result), front.clone(), fate, &mut changes) {
        // No era has such a result; whoever wrote it has nothing to say.
        return [b"{", &*front, b"}"].concat();
    }
    applied(result, &mut changes)
}

/// Writes a complete result of the modern era as one of the legacy. Structured content that is no
/// object is unknown there: its text stays, and is written where the server gave none.
#[must_use]
pub fn to_legacy<'a>(result: &'a [u8], method: &str) -> Cow<'a, [u8]> {
    let mut structured = None;
    let mut changes = Vec::new();
    let is_call = method == method::TOOLS_CALL;
    rewrite(
        result,
        whole(result),
        Vec::new(),
        |key, value| match key {
            b"resultType" => Fate::Goes,
            b"ttlMs" | b"cacheScope" if is_hinted(method) => Fate::Goes,
            b"structuredContent" if is_call && !is_object(value.of(result)) => {
                structured = Some(value);
                Fate::Goes
            }
            _ => Fate::Stays,
        },
        &mut changes,
    );
    if let Some(value) = structured {
        in_words(result, value, &mut changes);
    }
    match changes.is_empty() {
        true => Cow::Borrowed(result),
        false => Cow::Owned(applied(result, &mut changes)),
    }
}

/// Appends the change that says a value as text, where the result has no text.
fn in_words(result: &[u8], value: Span, changes: &mut Vec<Change>) {
    let Some(content) = object::field(result, "content") else {
        return;
    };
    let blocks = content.of(result);
    let is_text = |block: Span| {
        let block = block.of(blocks);
        object::text(block, "type").as_deref() == Some("text")
    };
    let value = value.of(result);
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
        let bracket = Span {
            start: content.start,
            end: content.start + 1,
        };
        changes.push((bracket, block));
    }
}

/// Writes the result that ends a stream of changes, or of any request that has nothing to say.
#[must_use]
pub fn empty(subscription: Option<&[u8]>) -> Vec<u8> {
    let mut front = Vec::new();
    push_member(&mut front, "resultType", &literal("complete"));
    if let Some(id) = subscription {
        let mut member = Vec::new();
        push_member(&mut member, meta::SUBSCRIPTION_ID, id);
        push_member(&mut front, "_meta", &[b"{", &*member, b"}"].concat());
    }
    [b"{", &*front, b"}"].concat()
}

/// Where a result says what the eras say differently.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    meta: Option<Span>,
    ttl_ms: Option<Span>,
    scope: Option<Span>,
}

impl Seen {
    fn of(result: &[u8]) -> Self {
        let mut seen = Self::default();
        for (key, value) in object::fields(result) {
            match &*key {
                "_meta" => seen.meta = Some(value),
                "ttlMs" => seen.ttl_ms = Some(value),
                "cacheScope" => seen.scope = Some(value),
                _ => {}
            }
        }
        seen
    }

    /// Whether both hints are there and are what they must be.
    fn is_well_hinted(&self, result: &[u8]) -> bool {
        let (Some(ttl_ms), Some(scope)) = (self.ttl_ms, self.scope) else {
            return false;
        };
        let ttl_ms = ttl_ms.of(result);
        let scope = scope.of(result);
        !ttl_ms.is_empty()
            && ttl_ms.iter().all(u8::is_ascii_digit)
            && (scope == b"\"public\"" || scope == b"\"private\"")
    }
}

#[cfg(test)]
mod tests;
