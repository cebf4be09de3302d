//! Request metadata of the modern era in `_meta`: parsed, added and stripped.

use std::borrow::Cow;

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};

use crate::mcp::{Revision, meta};
use crate::object::{self, is_object};
use crate::object_editor::{MemberList, ObjectEditor};
use crate::splice::ByteSpan;

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
    let mut all = MemberList::default();
    if capabilities.supports(ClientCapability::Sampling) {
        let tools = capabilities.supports(ClientCapability::SamplingTools);
        let sampling = if tools { b"{\"tools\":{}}" } else { NONE };
        all.push("sampling", sampling);
    }
    let mut modes = MemberList::default();
    for (capability, mode) in [
        (ClientCapability::ElicitationForm, "form"),
        (ClientCapability::ElicitationUrl, "url"),
    ] {
        if capabilities.supports(capability) {
            modes.push(mode, NONE);
        }
    }
    if !modes.is_empty() {
        all.push("elicitation", &modes.into_object());
    }
    if capabilities.supports(ClientCapability::Roots) {
        all.push("roots", NONE);
    }
    if tasks == TaskSupport::Supported {
        let extensions = MemberList::from_member(meta::TASKS, NONE);
        all.push("extensions", &extensions.into_object());
    }
    all.into_object()
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
}

/// Sets the reserved keys of parameters, replacing existing values, because clients may not set
/// reserved keys. `front` are further parameters: those of a continuation. The text of the editor
/// is [`NO_PARAMS`] if parameters are absent.
pub fn add_meta(editor: &mut ObjectEditor<'_>, stamp: &MetaFields<'_>, mut front: MemberList) {
    let mut members =
        MemberList::with_capacity(256 + stamp.capabilities.len() + stamp.client_info.len());
    members.push_text(meta::PROTOCOL_VERSION, Revision::V2026_07_28.as_str());
    members.push(meta::CLIENT_CAPABILITIES, stamp.capabilities);
    if !stamp.client_info.is_empty() {
        members.push(meta::CLIENT_INFO, stamp.client_info);
    }
    if let Some(level) = stamp.log_level {
        members.push_text(meta::LOG_LEVEL, level);
    }
    let params = editor.text();
    match object::field(params, "_meta") {
        Some(at) if is_object(at.slice(params)) => {
            editor.retain(at, |key, _| !is_reserved_key(key));
            editor.insert_first(at, members);
        }
        Some(at) => editor.replace(at, members.into_object()),
        None => front.push("_meta", &members.into_object()),
    }
    editor.insert_first(editor.whole(), front);
}

/// Strips modern-only members from parameters: the reserved `_meta` keys, and the responses and
/// state of a continuation.
pub fn strip_meta(editor: &mut ObjectEditor<'_>) {
    let mut meta = None;
    editor.retain(editor.whole(), |key, value| match key {
        b"inputResponses" | b"requestState" => false,
        b"_meta" => {
            meta = Some(value);
            true
        }
        _ => true,
    });
    if let Some(at) = meta {
        editor.retain(at, |key, _| !is_reserved_key(key));
    }
}

fn is_reserved_key(key: &[u8]) -> bool {
    RESERVED.iter().any(|known| known.as_bytes() == key)
}

/// Returns a member of object type.
fn object_member<'a>(parent: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = object::field(parent, key)?.slice(parent);
    is_object(value).then_some(value)
}

#[cfg(test)]
mod tests;
