//! Request metadata of the modern era in `_meta`: parsed, added and stripped.

use std::borrow::Cow;

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};

use super::object_edit::{
    MemberAction, OwnedEdit, is_object, push_member, rewrite_object, to_string_literal, whole_span,
};
use crate::mcp::{Revision, meta};
use crate::object;
use crate::span::ByteSpan;

/// Parameters of a request without parameters.
pub const NO_PARAMS: &[u8] = b"{}";

/// Reserved `_meta` keys of modern requests.
const RESERVED: [&str; 4] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
];

/// The reserved `_meta` keys of a request. Spans refer to the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestMeta<'a> {
    /// The revision, if a string.
    pub version: Option<Cow<'a, str>>,
    /// The client capabilities, of any type.
    pub capabilities: Option<ByteSpan>,
    /// The client info.
    pub client_info: Option<ByteSpan>,
    /// The minimum log level.
    pub log_level: Option<ByteSpan>,
    /// The whole `_meta`, if an object.
    pub meta: Option<ByteSpan>,
    /// Whether the revision key is present, with any value.
    pub has_version: bool,
    /// Whether any reserved key is present.
    pub has_reserved_keys: bool,
}

impl<'a> RequestMeta<'a> {
    /// Parses parameters.
    #[must_use]
    pub fn parse(params: &'a [u8]) -> Self {
        let mut request_meta = Self::default();
        let Some(at) = object::field(params, "_meta") else {
            return request_meta;
        };
        let text = at.slice(params);
        if !is_object(text) {
            return request_meta;
        }
        request_meta.meta = Some(at);
        for (key, value) in object::fields(text) {
            let value = value.shift(at.start);
            match &*key {
                meta::PROTOCOL_VERSION => {
                    request_meta.version = object::parse_string(value.slice(params));
                    request_meta.has_version = true;
                }
                meta::CLIENT_CAPABILITIES => request_meta.capabilities = Some(value),
                meta::CLIENT_INFO => request_meta.client_info = Some(value),
                meta::LOG_LEVEL => request_meta.log_level = Some(value),
                _ => continue,
            }
            request_meta.has_reserved_keys = true;
        }
        request_meta
    }
}

/// Parses declared client capabilities of either era.
#[must_use]
pub fn parse_capabilities(capabilities: &[u8]) -> ClientCapabilities {
    let mut parsed = ClientCapabilities::default();
    if let Some(sampling) = object_member(capabilities, "sampling") {
        parsed = parsed.with_capability(ClientCapability::Sampling);
        if object_member(sampling, "tools").is_some() {
            parsed = parsed.with_capability(ClientCapability::SamplingTools);
        }
    }
    if let Some(elicitation) = object_member(capabilities, "elicitation") {
        let url = object_member(elicitation, "url").is_some();
        if url {
            parsed = parsed.with_capability(ClientCapability::ElicitationUrl);
        }
        // An empty object means form mode, as before the introduction of modes.
        if object_member(elicitation, "form").is_some() || !url {
            parsed = parsed.with_capability(ClientCapability::ElicitationForm);
        }
    }
    if object_member(capabilities, "roots").is_some() {
        parsed = parsed.with_capability(ClientCapability::Roots);
    }
    parsed
}

/// Whether modern capabilities of either side declare the tasks extension.
#[must_use]
pub fn supports_tasks(capabilities: &[u8]) -> bool {
    let extensions = object_member(capabilities, "extensions");
    extensions.is_some_and(|extensions| object_member(extensions, meta::TASKS).is_some())
}

/// Whether a client accepts a task as a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSupport {
    /// Accepted.
    Supported,
    /// Not accepted.
    Unsupported,
}

/// Writes client capabilities.
#[must_use]
pub fn write_capabilities(capabilities: ClientCapabilities, tasks: TaskSupport) -> Vec<u8> {
    const NONE: &[u8] = b"{}";
    let wrapped = |members: Vec<u8>| [b"{", &*members, b"}"].concat();
    let mut all = Vec::new();
    if capabilities.supports(ClientCapability::Sampling) {
        let tools = capabilities.supports(ClientCapability::SamplingTools);
        let sampling = if tools { b"{\"tools\":{}}" } else { NONE };
        push_member(&mut all, "sampling", sampling);
    }
    let mut modes = Vec::new();
    for (capability, mode) in [
        (ClientCapability::ElicitationForm, "form"),
        (ClientCapability::ElicitationUrl, "url"),
    ] {
        if capabilities.supports(capability) {
            push_member(&mut modes, mode, NONE);
        }
    }
    if !modes.is_empty() {
        push_member(&mut all, "elicitation", &wrapped(modes));
    }
    if capabilities.supports(ClientCapability::Roots) {
        push_member(&mut all, "roots", NONE);
    }
    if tasks == TaskSupport::Supported {
        let mut extensions = Vec::new();
        push_member(&mut extensions, meta::TASKS, NONE);
        push_member(&mut all, "extensions", &wrapped(extensions));
    }
    wrapped(all)
}

/// Metadata added to translate a legacy request to modern.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetaFields<'a> {
    /// The client capabilities: an object.
    pub capabilities: &'a [u8],
    /// The client info: an object, or empty to omit.
    pub client_info: &'a [u8],
    /// The minimum log level.
    pub log_level: Option<&'a str>,
    /// Further `_meta` members, without a comma at either end.
    pub extra_meta: &'a [u8],
    /// Leading parameters in the same form: those of a continuation.
    pub extra_params: &'a [u8],
}

/// Appends the edits that set the reserved keys of parameters, replacing existing values, because
/// clients may not set reserved keys. `params` is [`NO_PARAMS`] if absent.
pub fn add_meta(params: &[u8], stamp: &MetaFields<'_>, out: &mut Vec<OwnedEdit>) {
    let mut members = Vec::with_capacity(
        256 + stamp.capabilities.len() + stamp.client_info.len() + stamp.extra_meta.len(),
    );
    let version = to_string_literal(Revision::V2026_07_28.as_str());
    push_member(&mut members, meta::PROTOCOL_VERSION, &version);
    push_member(&mut members, meta::CLIENT_CAPABILITIES, stamp.capabilities);
    if !stamp.client_info.is_empty() {
        push_member(&mut members, meta::CLIENT_INFO, stamp.client_info);
    }
    if let Some(level) = stamp.log_level {
        push_member(&mut members, meta::LOG_LEVEL, &to_string_literal(level));
    }
    if !stamp.extra_meta.is_empty() {
        members.push(b',');
        members.extend_from_slice(stamp.extra_meta);
    }
    let mut front = stamp.extra_params.to_vec();
    let existing = object::field(params, "_meta");
    match existing {
        Some(at) if is_object(at.slice(params)) => {
            rewrite_object(params, at, members, |key, _| reserved_key_action(key), out);
        }
        Some(at) => out.push((at, [b"{", &*members, b"}"].concat())),
        None => push_member(&mut front, "_meta", &[b"{", &*members, b"}"].concat()),
    }
    rewrite_object(
        params,
        whole_span(params),
        front,
        |_, _| MemberAction::Keep,
        out,
    );
}

/// Appends the edits that strip modern-only members: the reserved `_meta` keys, and the responses
/// and state of a continuation.
pub fn strip_meta(params: &[u8], out: &mut Vec<OwnedEdit>) {
    let mut meta = None;
    rewrite_object(
        params,
        whole_span(params),
        Vec::new(),
        |key, value| match key {
            b"inputResponses" | b"requestState" => MemberAction::Remove,
            b"_meta" => {
                meta = Some(value);
                MemberAction::Keep
            }
            _ => MemberAction::Keep,
        },
        out,
    );
    if let Some(at) = meta {
        rewrite_object(
            params,
            at,
            Vec::new(),
            |key, _| reserved_key_action(key),
            out,
        );
    }
}

fn reserved_key_action(key: &[u8]) -> MemberAction {
    match RESERVED.iter().any(|known| known.as_bytes() == key) {
        true => MemberAction::Remove,
        false => MemberAction::Keep,
    }
}

/// Returns a member of object type.
fn object_member<'a>(parent: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = object::field(parent, key)?.slice(parent);
    is_object(value).then_some(value)
}

#[cfg(test)]
mod tests;
