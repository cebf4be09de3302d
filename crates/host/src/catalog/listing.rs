//! Tool definitions as the server wrote them, and lists of them as ready bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bowline_core::call::{Effect, Route};
use bowline_core::name;
use bowline_wire::object;
use bowline_wire::scan::{self, Keys};
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited, write_string};
use bytes::Bytes;
use foldhash::fast::RandomState;
use sha2::{Digest as _, Sha256};

use super::Listing;

/// What one server offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The server.
    pub server: Arc<str>,
    /// Its tools, in its own order.
    pub tools: Vec<Tool>,
    /// Its list under its own names: its own bytes where it came in one page.
    pub listing: Listing,
    /// Definitions left out because they have no usable name, or one that is taken.
    pub withheld: usize,
    by_name: HashMap<Arc<str>, usize, RandomState>,
}

/// One tool.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Where a call of it goes.
    pub route: Arc<Route>,
    /// Its name on `/mcp`.
    pub visible: Arc<str>,
    /// Its definition, byte for byte.
    pub definition: Bytes,
    /// Where in `definition` the value of `name` stands.
    name_at: Span,
}

impl Offer {
    /// Builds an offer from the pages of a server's `tools/list`.
    #[must_use]
    pub fn new(server: &Arc<str>, pages: &[Bytes], effects: &BTreeMap<String, Effect>) -> Self {
        let mut tools: Vec<Tool> = Vec::new();
        let mut by_name = HashMap::default();
        let mut withheld = 0;
        for definition in pages.iter().flat_map(read_tools) {
            match Tool::read(server, definition, effects) {
                Some(tool) if !by_name.contains_key(&tool.route.name) => {
                    by_name.insert(Arc::clone(&tool.route.name), tools.len());
                    tools.push(tool);
                }
                Some(_) | None => withheld += 1,
            }
        }
        let result = match pages {
            [page] if withheld == 0 && is_whole(page) => page.clone(),
            _ => write_list(tools.iter().map(|tool| tool.definition.as_ref())),
        };
        let fingerprint = fingerprint(&[&result]);
        Self {
            server: Arc::clone(server),
            tools,
            listing: Listing {
                result,
                fingerprint,
            },
            withheld,
            by_name,
        }
    }

    /// Returns the route of the tool with this name of the server's own.
    #[must_use]
    pub fn route(&self, tool: &str) -> Option<&Arc<Route>> {
        let at = *self.by_name.get(tool)?;
        self.tools.get(at).map(|tool| &tool.route)
    }
}

impl Tool {
    fn read(
        server: &Arc<str>,
        definition: Bytes,
        effects: &BTreeMap<String, Effect>,
    ) -> Option<Self> {
        // With a member that comes twice, we and a client might read different tools.
        scan::check(&definition, Keys::UniqueOutside).ok()?;
        let name_at = object::field(&definition, "name")?;
        let tool: Arc<str> = object::string(name_at.of(&definition))?.into();
        let effect = effects
            .get(tool.as_ref())
            .copied()
            .unwrap_or_else(|| declared_effect(&definition));
        Some(Self {
            visible: name::visible(server, &tool).into(),
            route: Arc::new(Route {
                server: Arc::clone(server),
                name: tool,
                effect,
            }),
            definition,
            name_at,
        })
    }

    /// Writes the definition under its visible name, every other byte unchanged.
    pub fn write_visible(&self, out: &mut Vec<u8>) {
        let mut literal = Vec::with_capacity(self.visible.len() + 2);
        write_string(&mut literal, &self.visible);
        Edited {
            source: &self.definition,
            edits: &[Edit {
                at: self.name_at,
                with: &literal,
            }],
        }
        .write(out);
    }
}

/// Returns the tool definitions of one `tools/list` result, as written.
pub fn read_tools(page: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    let tools = object::field(page, "tools").unwrap_or(Span { start: 0, end: 0 });
    object::items(tools.of(page)).map(move |item| {
        let at = item.shift(tools.start);
        page.slice(at.start..at.end)
    })
}

/// Whether a page may be shown to callers as it is: it has a list, and does not say that more
/// pages follow.
fn is_whole(page: &Bytes) -> bool {
    let is_list = object::field(page, "tools").is_some_and(|at| at.of(page).starts_with(b"["));
    is_list && object::field(page, "nextCursor").is_none()
}

/// What a server says of its tool. A hint: nothing unsafe may rest on it alone.
fn declared_effect(definition: &[u8]) -> Effect {
    let Some(annotations) = object::field(definition, "annotations") else {
        return Effect::Unknown;
    };
    let annotations = annotations.of(definition);
    match object::field(annotations, "readOnlyHint").map(|at| at.of(annotations)) {
        Some(b"true") => Effect::Read,
        Some(b"false") => Effect::Write,
        Some(_) | None => Effect::Unknown,
    }
}

/// Gives a hashed name to tools whose visible names would be the same.
///
/// Two servers cannot clash, since a server name holds no separator; two odd names of one server
/// can, where one looks like the mangled form of the other.
pub(super) fn resolve_collisions(offers: &mut BTreeMap<Arc<str>, Arc<Offer>>) {
    for offer in offers.values_mut() {
        let mut seen = HashSet::new();
        let clash = !offer.tools.iter().all(|tool| seen.insert(&tool.visible));
        if clash {
            let offer = Arc::make_mut(offer);
            for tool in &mut offer.tools {
                tool.visible = name::mangled(&offer.server, &tool.route.name).into();
            }
        }
    }
}

/// Merges the lists of all servers under their visible names.
pub(super) fn merge<'a>(offers: impl Iterator<Item = &'a Arc<Offer>>) -> Listing {
    let mut result = Vec::from(&b"{\"tools\":["[..]);
    let mut first = true;
    for tool in offers.flat_map(|offer| &offer.tools) {
        if !first {
            result.push(b',');
        }
        first = false;
        tool.write_visible(&mut result);
    }
    result.extend_from_slice(b"]}");
    let fingerprint = fingerprint(&[&result]);
    Listing {
        result: result.into(),
        fingerprint,
    }
}

/// Returns the list of nothing.
pub(super) fn empty() -> Listing {
    merge(std::iter::empty())
}

fn write_list<'a>(definitions: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut result = Vec::from(&b"{\"tools\":["[..]);
    for (nth, definition) in definitions.enumerate() {
        if nth > 0 {
            result.push(b',');
        }
        result.extend_from_slice(definition);
    }
    result.extend_from_slice(b"]}");
    result.into()
}

fn fingerprint(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}
