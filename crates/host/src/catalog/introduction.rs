//! What an endpoint says of itself: one server in its own words, all servers in words that hold
//! for each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::cache::Hint;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;

use super::mark::PREFIX;
use super::{Offer, keep};

/// Instructions of all servers together.
const INSTRUCTIONS_BYTES_MAX: usize = 64 * 1024;

/// What a server that has told nothing yet may turn out to have.
const ANYTHING: &str = concat!(
    r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
    r#""resources":{"subscribe":true,"listChanged":true},"logging":{},"completions":{}}"#,
);

/// What goes into the answer to `initialize`.
#[derive(Clone, Debug, Default)]
pub struct Introduction {
    /// The capabilities, a JSON object.
    pub capabilities: Bytes,
    /// `serverInfo`, where a server speaks for itself.
    pub server_info: Option<Bytes>,
    /// `instructions`, a JSON string.
    pub instructions: Option<Bytes>,
    /// `_meta`, a JSON object that says of which servers the introduction is not as it was
    /// approved, or odd.
    pub meta: Option<Bytes>,
    /// How long all this may be kept and by whom, where every server says so.
    pub hint: Option<Hint>,
}

/// Which capabilities any of several servers has.
#[derive(Clone, Copy, Debug, Default)]
struct Any {
    prompts: bool,
    resources: bool,
    subscribe: bool,
    logging: bool,
    completions: bool,
    tasks: bool,
    tasks_list: bool,
    tasks_cancel: bool,
}

impl Introduction {
    /// Introduces a server that has told nothing yet.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            capabilities: Bytes::from_static(ANYTHING.as_bytes()),
            server_info: None,
            instructions: None,
            meta: None,
            hint: None,
        }
    }

    /// Introduces one server by what it said.
    #[must_use]
    pub fn of_one(initialize: &Bytes) -> Self {
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
            hint: keep::read(initialize),
        }
    }

    /// Introduces several servers.
    pub(crate) fn of_all<'a>(offers: impl Iterator<Item = &'a Arc<Offer>> + Clone) -> Self {
        let any = offers.clone().fold(Any::default(), Any::or);
        Self {
            capabilities: with_extensions(any.written(), offers.clone()),
            server_info: None,
            hint: keep::told(keep::merged(
                offers.clone().map(|offer| keep::read(&offer.initialize)),
            )),
            meta: marked(offers.clone()),
            instructions: joined(offers),
        }
    }

    /// Introduces one server by what of its words is offered.
    pub(crate) fn of_offer(offer: &Arc<Offer>) -> Self {
        Self {
            meta: marked(std::iter::once(offer)),
            ..Self::of_one(&offer.initialize)
        }
    }

    /// Returns the same with every capability that a server still to come may have.
    #[must_use]
    pub fn open(&self) -> Self {
        let mut capabilities = ANYTHING.as_bytes().to_vec();
        for key in ["tasks", "extensions"] {
            if let Some(own) = object::field(&self.capabilities, key) {
                capabilities.pop();
                capabilities.push(b',');
                write_string(&mut capabilities, key);
                capabilities.push(b':');
                capabilities.extend_from_slice(own.of(&self.capabilities));
                capabilities.push(b'}');
            }
        }
        Self {
            capabilities: capabilities.into(),
            hint: None,
            ..self.clone()
        }
    }
}

impl Any {
    fn or(mut self, offer: &Arc<Offer>) -> Self {
        let Some(capabilities) = capabilities(&offer.initialize) else {
            return self;
        };
        let member = |of: &[u8], key: &str| object::field(of, key).map(|at| at.of(of).to_vec());
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

    fn written(self) -> Bytes {
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

/// Adds the extensions that any of several servers has, each as the first of them declares it.
fn with_extensions<'a>(capabilities: Bytes, offers: impl Iterator<Item = &'a Arc<Offer>>) -> Bytes {
    let mut all: BTreeMap<String, &[u8]> = BTreeMap::new();
    for offer in offers {
        let own = self::capabilities(&offer.initialize).and_then(|own| {
            let at = object::field(own, "extensions")?;
            Some(at.of(own))
        });
        for (key, at) in own.into_iter().flat_map(object::fields) {
            let settings = own.map_or(&b"{}"[..], |own| at.of(own));
            all.entry(key.into_owned()).or_insert(settings);
        }
    }
    if all.is_empty() {
        return capabilities;
    }
    let mut out = capabilities.to_vec();
    out.pop();
    out.extend_from_slice(b",\"extensions\":");
    for (nth, (key, settings)) in all.iter().enumerate() {
        out.push(if nth == 0 { b'{' } else { b',' });
        write_string(&mut out, key);
        out.push(b':');
        out.extend_from_slice(settings);
    }
    out.extend_from_slice(b"}}");
    out.into()
}

/// Returns the capabilities in a result of `initialize`.
pub(crate) fn capabilities(initialize: &[u8]) -> Option<&[u8]> {
    object::field(initialize, "capabilities").map(|at| at.of(initialize))
}

/// Returns whether a result of `initialize` declares a capability, `.` between its parts.
pub(crate) fn declares(initialize: &[u8], path: &str) -> bool {
    let mut at = capabilities(initialize);
    for key in path.split('.') {
        at = at.and_then(|object| object::field(object, key).map(|at| at.of(object)));
    }
    at.is_some_and(|value| value != b"false" && value != b"null")
}

/// We say when lists change, whether the server does or not: it may be restarted with others.
fn with_list_changed(capabilities: &Bytes) -> Bytes {
    let mut edits: Vec<(Span, &[u8])> = Vec::new();
    for (key, at) in object::fields(capabilities) {
        if !matches!(key.as_ref(), "tools" | "prompts" | "resources") {
            continue;
        }
        let own = at.of(capabilities);
        if !own.starts_with(b"{") {
            continue;
        }
        let inside = at.start + 1;
        let told = object::field(own, "listChanged").map(|told| told.shift(at.start));
        let empty = object::fields(own).next().is_none();
        let here = Span {
            start: inside,
            end: inside,
        };
        edits.push(match told {
            Some(told) => (told, b"true"),
            None if empty => (here, b"\"listChanged\":true"),
            None => (here, b"\"listChanged\":true,"),
        });
    }
    let edits: Vec<_> = edits
        .into_iter()
        .map(|(at, with)| Edit { at, with })
        .collect();
    let edited = Edited {
        source: capabilities,
        edits: &edits,
    };
    edited.to_vec().into()
}

/// Writes which servers introduce themselves otherwise than was approved, or oddly.
fn marked<'a>(offers: impl Iterator<Item = &'a Arc<Offer>>) -> Option<Bytes> {
    let mut members = Vec::new();
    for offer in offers.filter(|offer| !offer.marks.is_none()) {
        if !members.is_empty() {
            members.push(b',');
        }
        write_string(&mut members, &offer.server);
        members.extend_from_slice(b":{");
        members.extend_from_slice(&offer.marks.members());
        members.push(b'}');
    }
    if members.is_empty() {
        return None;
    }
    let mut out = Vec::from(&b"{"[..]);
    write_string(&mut out, &format!("{PREFIX}introduction"));
    out.extend_from_slice(b":{");
    out.extend_from_slice(&members);
    out.extend_from_slice(b"}}");
    Some(out.into())
}

/// Joins what servers tell their users; what does not fit is left out.
fn joined<'a>(offers: impl Iterator<Item = &'a Arc<Offer>>) -> Option<Bytes> {
    let mut text = String::new();
    for offer in offers {
        let own = object::field(&offer.initialize, "instructions");
        let own = own.and_then(|at| object::string(at.of(&offer.initialize)));
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
    fn a_server_keeps_its_own_capabilities_and_gains_list_changed() {
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
            let seen = Introduction::of_one(&initialize).capabilities;
            assert_eq!(seen, want.as_bytes());
        }
    }

    #[test]
    fn a_capability_is_declared_unless_it_is_false() {
        let initialize = br#"{"capabilities":{"resources":{"subscribe":false},"logging":{}}}"#;
        assert!(declares(initialize, "logging"));
        assert!(declares(initialize, "resources"));
        assert!(!declares(initialize, "resources.subscribe"));
        assert!(!declares(initialize, "tasks.list"));
    }
}
