//! What a request of the modern era says of itself: read, written, and taken away.

use std::borrow::Cow;

use bowline_core::caller::{Abilities, Ability};

use super::change::{Change, Fate, is_object, literal, push_member, rewrite, whole};
use crate::mcp::{Revision, meta};
use crate::object;
use crate::span::Span;

/// The parameters of a request that has none.
pub const NO_PARAMS: &[u8] = b"{}";

/// The keys of `_meta` that only requests of the modern era have.
const RESERVED: [&str; 4] = [
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
];

/// What the parameters of a request say in the reserved keys of their `_meta`. Places are those
/// in the parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// The revision, where it is a text.
    pub version: Option<Cow<'a, str>>,
    /// What the client can do, whatever it is written as.
    pub capabilities: Option<Span>,
    /// Who the client says that it is.
    pub client_info: Option<Span>,
    /// From which level on it wants to hear log messages.
    pub log_level: Option<Span>,
    /// The whole `_meta`, where it is an object.
    pub meta: Option<Span>,
    /// Whether the key of the revision is there, whatever stands behind it.
    pub versioned: bool,
    /// Whether any of the reserved keys is there.
    pub any: bool,
}

impl<'a> Said<'a> {
    /// Reads parameters.
    #[must_use]
    pub fn read(params: &'a [u8]) -> Self {
        let mut said = Self::default();
        let Some(at) = object::field(params, "_meta") else {
            return said;
        };
        let text = at.of(params);
        if !is_object(text) {
            return said;
        }
        said.meta = Some(at);
        for (key, value) in object::fields(text) {
            let value = value.shift(at.start);
            match &*key {
                meta::PROTOCOL_VERSION => {
                    said.version = object::string(value.of(params));
                    said.versioned = true;
                }
                meta::CLIENT_CAPABILITIES => said.capabilities = Some(value),
                meta::CLIENT_INFO => said.client_info = Some(value),
                meta::LOG_LEVEL => said.log_level = Some(value),
                _ => continue,
            }
            said.any = true;
        }
        said
    }
}

/// Reads what a client can be asked for from the capabilities it declares, in either era.
#[must_use]
pub fn abilities(capabilities: &[u8]) -> Abilities {
    let mut abilities = Abilities::default();
    if let Some(sampling) = member(capabilities, "sampling") {
        abilities = abilities.with(Ability::Sampling);
        if member(sampling, "tools").is_some() {
            abilities = abilities.with(Ability::SamplingTools);
        }
    }
    if let Some(elicitation) = member(capabilities, "elicitation") {
        let url = member(elicitation, "url").is_some();
        if url {
            abilities = abilities.with(Ability::ElicitationUrl);
        }
        // Before there were two ways, an empty object meant a form; it still does.
        if member(elicitation, "form").is_some() || !url {
            abilities = abilities.with(Ability::ElicitationForm);
        }
    }
    if member(capabilities, "roots").is_some() {
        abilities = abilities.with(Ability::Roots);
    }
    abilities
}

/// Whether capabilities of the modern era, of either side, name the extension of tasks.
#[must_use]
pub fn takes_tasks(capabilities: &[u8]) -> bool {
    let extensions = member(capabilities, "extensions");
    extensions.is_some_and(|extensions| member(extensions, meta::TASKS).is_some())
}

/// Whether a client is declared to take a task for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// It is.
    Taken,
    /// It is not.
    NotTaken,
}

/// Writes the capabilities of a client that can be asked for these.
#[must_use]
pub fn capabilities(abilities: Abilities, tasks: Tasks) -> Vec<u8> {
    const NONE: &[u8] = b"{}";
    let wrapped = |members: Vec<u8>| [b"{", &*members, b"}"].concat();
    let mut all = Vec::new();
    if abilities.has(Ability::Sampling) {
        let tools = abilities.has(Ability::SamplingTools);
        let sampling = if tools { b"{\"tools\":{}}" } else { NONE };
        push_member(&mut all, "sampling", sampling);
    }
    let mut ways = Vec::new();
    for (ability, way) in [
        (Ability::ElicitationForm, "form"),
        (Ability::ElicitationUrl, "url"),
    ] {
        if abilities.has(ability) {
            push_member(&mut ways, way, NONE);
        }
    }
    if !ways.is_empty() {
        push_member(&mut all, "elicitation", &wrapped(ways));
    }
    if abilities.has(Ability::Roots) {
        push_member(&mut all, "roots", NONE);
    }
    if tasks == Tasks::Taken {
        let mut extensions = Vec::new();
        push_member(&mut extensions, meta::TASKS, NONE);
        push_member(&mut all, "extensions", &wrapped(extensions));
    }
    wrapped(all)
}

/// What a request of a caller of the legacy era is given to be one of the modern.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp<'a> {
    /// What the client can do: an object.
    pub capabilities: &'a [u8],
    /// Who the client is: an object, or empty to leave it out.
    pub client_info: &'a [u8],
    /// From which level on log messages are wanted.
    pub log_level: Option<&'a str>,
    /// Further members of `_meta` as they are to be written, without a comma at either end.
    pub more: &'a [u8],
    /// Members to put in front of the parameters, written likewise: those of a further round.
    pub front: &'a [u8],
}

/// Appends the changes that give parameters their reserved keys, in place of any that they have
/// already: those are not the caller's to write. `params` are [`NO_PARAMS`] where there are none.
pub fn stamp(params: &[u8], stamp: &Stamp<'_>, out: &mut Vec<Change>) {
    let mut members = Vec::with_capacity(
        256 + stamp.capabilities.len() + stamp.client_info.len() + stamp.more.len(),
    );
    let version = literal(Revision::V2026_07_28.as_str());
    push_member(&mut members, meta::PROTOCOL_VERSION, &version);
    push_member(&mut members, meta::CLIENT_CAPABILITIES, stamp.capabilities);
    if !stamp.client_info.is_empty() {
        push_member(&mut members, meta::CLIENT_INFO, stamp.client_info);
    }
    if let Some(level) = stamp.log_level {
        push_member(&mut members, meta::LOG_LEVEL, &literal(level));
    }
    if !stamp.more.is_empty() {
        members.push(b',');
        members.extend_from_slice(stamp.more);
    }
    let mut front = stamp.front.to_vec();
    let there = object::field(params, "_meta");
    match there {
        Some(at) if is_object(at.of(params)) => {
            rewrite(params, at, members, |key, _| reserved(key), out);
        }
        Some(at) => out.push((at, [b"{", &*members, b"}"].concat())),
        None => push_member(&mut front, "_meta", &[b"{", &*members, b"}"].concat()),
    }
    rewrite(params, whole(params), front, |_, _| Fate::Stays, out);
}

/// Appends the changes that take away what only the modern era knows: the reserved keys of
/// `_meta`, and the answers and the state of a further round.
pub fn bare(params: &[u8], out: &mut Vec<Change>) {
    let mut meta = None;
    rewrite(
        params,
        whole(params),
        Vec::new(),
        |key, value| match key {
            b"inputResponses" | b"requestState" => Fate::Goes,
            b"_meta" => {
                meta = Some(value);
                Fate::Stays
            }
            _ => Fate::Stays,
        },
        out,
    );
    if let Some(at) = meta {
        rewrite(params, at, Vec::new(), |key, _| reserved(key), out);
    }
}

fn reserved(key: &[u8]) -> Fate {
    match RESERVED.iter().any(|known| known.as_bytes() == key) {
        true => Fate::Goes,
        false => Fate::Stays,
    }
}

/// Returns a member that is an object.
fn member<'a>(of: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = object::field(of, key)?.of(of);
    is_object(value).then_some(value)
}

#[cfg(test)]
mod tests;
