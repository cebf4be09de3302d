//! The `initialize` result of an endpoint: of a single server, or merged over all servers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::cache::CacheHint;
use bowline_wire::splice::write_string;
use bowline_wire::{MemberList, ObjectEditor, object};
use bytes::Bytes;

use super::definition_marks::META_PREFIX;
use super::{ServerCatalog, cache_hints};

/// Maximum bytes of the merged instructions.
const INSTRUCTIONS_BYTES_MAX: usize = 64 * 1024;

/// Capabilities assumed for a server not listed yet.
const ALL_CAPABILITIES: &str = concat!(
    r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
    r#""resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}"#,
);

/// Members for the response to `initialize`.
#[derive(Clone, Debug, Default)]
pub struct InitializeInfo {
    /// The capabilities, a JSON object.
    pub capabilities: Bytes,
    /// `serverInfo`, for a single server.
    pub server_info: Option<Bytes>,
    /// `instructions`, a JSON string.
    pub instructions: Option<Bytes>,
    /// `_meta`, a JSON object naming the servers with changed or suspicious `initialize` fields.
    pub meta: Option<Bytes>,
    /// Cache hint, if every server gives a hint.
    pub hint: Option<CacheHint>,
}

/// Capabilities of any of several servers.
#[derive(Clone, Copy, Debug, Default)]
struct CapabilityUnion {
    prompts: bool,
    resources: bool,
    subscribe: bool,
    logging: bool,
    completions: bool,
    tasks: bool,
    tasks_list: bool,
    tasks_cancel: bool,
}

impl InitializeInfo {
    /// Returns the members for a server not listed yet.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            capabilities: Bytes::from_static(ALL_CAPABILITIES.as_bytes()),
            server_info: None,
            instructions: None,
            meta: None,
            hint: None,
        }
    }

    /// Returns the members for a server's result of `initialize`.
    #[must_use]
    pub fn from_initialize(initialize: &Bytes) -> Self {
        let own = |key| {
            let at = object::field(initialize, key)?;
            Some(initialize.slice(at.start..at.end))
        };
        Self {
            capabilities: own("capabilities").map_or_else(
                || Bytes::from_static(b"{}"),
                |capabilities| with_list_changed(&capabilities),
            ),
            server_info: own("serverInfo"),
            instructions: own("instructions"),
            meta: None,
            hint: cache_hints::parse_hint(initialize),
        }
    }

    /// Merges several servers.
    pub fn from_servers<'a>(offers: impl Iterator<Item = &'a Arc<ServerCatalog>> + Clone) -> Self {
        let any = offers
            .clone()
            .fold(CapabilityUnion::default(), CapabilityUnion::merge_server);
        Self {
            capabilities: with_extensions(any.to_json(), offers.clone()),
            server_info: None,
            hint: cache_hints::known_hint(cache_hints::merge_hints(
                offers
                    .clone()
                    .map(|offer| cache_hints::parse_hint(&offer.initialize)),
            )),
            meta: marks_meta(offers.clone()),
            instructions: join_instructions(offers),
        }
    }

    /// Returns the members for a server's visible catalog entries.
    pub fn from_server(offer: &Arc<ServerCatalog>) -> Self {
        Self {
            meta: marks_meta(std::iter::once(offer)),
            ..Self::from_initialize(&offer.initialize)
        }
    }

    /// Adds every capability that a server to come may have.
    #[must_use]
    pub fn with_all_capabilities(&self) -> Self {
        let mut editor = ObjectEditor::new(ALL_CAPABILITIES.as_bytes());
        for key in ["tasks", "extensions"] {
            if let Some(own) = object::field(&self.capabilities, key) {
                let member = MemberList::from_member(key, own.slice(&self.capabilities));
                editor.insert_last(editor.whole(), member);
            }
        }
        let capabilities = editor.finish();
        Self {
            capabilities: capabilities.into(),
            hint: None,
            ..self.clone()
        }
    }
}

impl CapabilityUnion {
    fn merge_server(mut self, offer: &Arc<ServerCatalog>) -> Self {
        let Some(capabilities) = capabilities(&offer.initialize) else {
            return self;
        };
        let member =
            |json: &[u8], key: &str| object::field(json, key).map(|at| at.slice(json).to_vec());
        let has = |key| member(capabilities, key).is_some();
        self.prompts |= has("prompts");
        self.resources |= has("resources");
        self.logging |= has("logging");
        self.completions |= has("completions");
        let resources = member(capabilities, "resources").unwrap_or_default();
        self.subscribe |= member(&resources, "subscribe").is_some_and(|value| value == b"true");
        if let Some(tasks) = member(capabilities, "tasks") {
            self.tasks = true;
            self.tasks_list |= member(&tasks, "list").is_some();
            self.tasks_cancel |= member(&tasks, "cancel").is_some();
        }
        self
    }

    fn to_json(self) -> Bytes {
        let mut out = String::from(r#"{"tools":{"listChanged":true}"#);
        for (has, text) in [
            (self.prompts, r#","prompts":{"listChanged":true}"#),
            (
                self.resources && self.subscribe,
                r#","resources":{"subscribe":true,"listChanged":true}"#,
            ),
            (
                self.resources && !self.subscribe,
                r#","resources":{"listChanged":true}"#,
            ),
            (self.logging, r#","logging":{}"#),
            (self.completions, r#","completions":{}"#),
            (self.tasks, r#","tasks":{"#),
            (self.tasks && self.tasks_list, r#""list":{},"#),
            (self.tasks && self.tasks_cancel, r#""cancel":{},"#),
            (self.tasks, r#""requests":{"tools":{"call":{}}}}"#),
        ] {
            if has {
                out.push_str(text);
            }
        }
        out.push('}');
        out.into()
    }
}

/// Adds the extensions of all servers; the first declaration wins.
fn with_extensions<'a>(
    capabilities: Bytes,
    offers: impl Iterator<Item = &'a Arc<ServerCatalog>>,
) -> Bytes {
    let mut all: BTreeMap<String, &[u8]> = BTreeMap::new();
    for offer in offers {
        let own = self::capabilities(&offer.initialize).and_then(|own| {
            let at = object::field(own, "extensions")?;
            Some(at.slice(own))
        });
        for (key, at) in own.into_iter().flat_map(object::fields) {
            let settings = own.map_or(&b"{}"[..], |own| at.slice(own));
            all.entry(key.into_owned()).or_insert(settings);
        }
    }
    if all.is_empty() {
        return capabilities;
    }
    let mut extensions = MemberList::default();
    for (key, settings) in &all {
        extensions.push(key, settings);
    }
    let mut editor = ObjectEditor::new(&capabilities);
    editor.set_last(editor.whole(), &["extensions"], extensions.into_object());
    editor.finish().into()
}

/// Returns the capabilities of an `initialize` result.
pub fn capabilities(initialize: &[u8]) -> Option<&[u8]> {
    object::field(initialize, "capabilities").map(|at| at.slice(initialize))
}

/// True if an `initialize` result declares a capability; `path` is dot-separated.
pub fn declares_capability(initialize: &[u8], path: &str) -> bool {
    let mut at = capabilities(initialize);
    for key in path.split('.') {
        at = at.and_then(|object| object::field(object, key).map(|at| at.slice(object)));
    }
    at.is_some_and(|value| value != b"false" && value != b"null")
}

/// Declares `listChanged` always: the gateway announces changes, for example after a restart of the
/// server.
fn with_list_changed(capabilities: &Bytes) -> Bytes {
    let mut editor = ObjectEditor::new(capabilities);
    for (key, at) in object::fields(capabilities) {
        if matches!(key.as_ref(), "tools" | "prompts" | "resources") {
            editor.set_first(at, &["listChanged"], &b"true"[..]);
        }
    }
    editor.finish().into()
}

/// Writes the marks of servers with changed or suspicious fields.
fn marks_meta<'a>(offers: impl Iterator<Item = &'a Arc<ServerCatalog>>) -> Option<Bytes> {
    let mut members = MemberList::default();
    for offer in offers.filter(|offer| !offer.marks.is_empty()) {
        members.push(&offer.server, &offer.marks.to_members().into_object());
    }
    if members.is_empty() {
        return None;
    }
    let key = format!("{META_PREFIX}introduction");
    let meta = MemberList::from_member(&key, &members.into_object());
    Some(meta.into_object().into())
}

/// Joins the instructions of servers; drops those beyond the limit.
fn join_instructions<'a>(offers: impl Iterator<Item = &'a Arc<ServerCatalog>>) -> Option<Bytes> {
    let mut text = String::new();
    for offer in offers {
        let own = object::field(&offer.initialize, "instructions");
        let own = own.and_then(|at| object::parse_string(at.slice(&offer.initialize)));
        let Some(own) = own.filter(|own| !own.trim().is_empty()) else {
            continue;
        };
        let gap = if text.is_empty() { "" } else { "\n\n" };
        let more = format!("{gap}{}: {own}", offer.server);
        if text.len() + more.len() <= INSTRUCTIONS_BYTES_MAX {
            text.push_str(&more);
        }
    }
    (!text.is_empty()).then(|| {
        let mut out = Vec::with_capacity(text.len() + 2);
        write_string(&mut out, &text);
        out.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_kept_and_gain_list_changed() {
        for (own, want) in [
            (r#"{"tools":{}}"#, r#"{"tools":{"listChanged":true}}"#),
            (
                r#"{ "x":1, "resources" : { "subscribe":true } ,"prompts":{"listChanged":false}}"#,
                r#"{ "x":1, "resources" : {"listChanged":true, "subscribe":true } ,"prompts":{"listChanged":true}}"#,
            ),
            (
                r#"{"tools":null,"tasks":{"list":{}}}"#,
                r#"{"tools":null,"tasks":{"list":{}}}"#,
            ),
        ] {
            let initialize = Bytes::from(format!(r#"{{"capabilities":{own}}}"#));
            let seen = InitializeInfo::from_initialize(&initialize).capabilities;
            assert_eq!(seen, want.as_bytes());
        }
    }

    #[test]
    fn capability_is_declared_unless_false() {
        let initialize = br#"{"capabilities":{"resources":{"subscribe":false},"logging":{}}}"#;
        assert!(declares_capability(initialize, "logging"));
        assert!(declares_capability(initialize, "resources"));
        assert!(!declares_capability(initialize, "resources.subscribe"));
        assert!(!declares_capability(initialize, "tasks.list"));
    }
}
