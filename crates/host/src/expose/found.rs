//! The index of a catalog, and what is said of what was found.

use bowline_core::call::{Call, Origin, Reply};
use bowline_core::search::{self, Text};
use bowline_wire::object;
use serde::Serialize;

use super::arguments;
use crate::catalog::{Catalog, Item};
use crate::reply;
use crate::tools::signature::signature;

/// Tools that one search returns at most.
pub const FOUND_MAX: usize = 50;

/// Tools that one search returns where nobody says how many.
const FOUND: usize = 8;

/// Of a description, so many characters are shown.
const ABOUT_CHARS_MAX: usize = 300;

/// How deep in a schema the words of parameters are looked for.
const SCHEMA_DEPTH_MAX: usize = 4;

/// The tools of one catalog, by the words that are said of them.
#[derive(Debug)]
pub(crate) struct Index {
    /// Of which catalog.
    pub(crate) version: u64,
    index: search::Index,
    items: Vec<Item>,
}

/// One tool that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Its name among those of all servers.
    pub name: String,
    /// Its server.
    pub server: String,
    /// The server's own name of it.
    pub tool: String,
    /// What it takes, in one line.
    pub signature: String,
    /// The beginning of what it says of itself.
    pub description: String,
    /// What running it does.
    pub effect: &'static str,
    /// How well it fits; comparable within one search only.
    pub score: f32,
}

impl Index {
    /// Builds the index of all tools that servers offer.
    pub(crate) fn build(catalog: &Catalog) -> Self {
        let tools = catalog.offers().flat_map(|offer| offer.tools.iter());
        let items: Vec<Item> = tools.cloned().collect();
        Self {
            version: catalog.version,
            index: search::Index::build(items.iter().map(text)),
            items,
        }
    }

    /// Returns what fits a query best among what may be seen.
    pub(crate) fn find(
        &self,
        query: &str,
        found_max: usize,
        sees: impl Fn(&Item) -> bool,
    ) -> Vec<Found> {
        let may = |nth: usize| self.items.get(nth).is_some_and(&sees);
        let hits = self.index.find(query, found_max.min(FOUND_MAX), may);
        let found = hits.into_iter().filter_map(|hit| {
            let item = self.items.get(hit.nth)?;
            Some(found(item, hit.score))
        });
        found.collect()
    }
}

/// Answers `find_tools`.
pub(crate) fn find(call: &Call, index: &Index, sees: impl Fn(&Item) -> bool) -> Reply {
    let asked = arguments(call);
    let Some(query) = object::text(asked, "query").filter(|query| !query.trim().is_empty()) else {
        let said = "find_tools needs a query: what the tool should do, in a few words";
        return reply::wrong(said, &call.id);
    };
    let found_max = object::field(asked, "limit")
        .and_then(|at| std::str::from_utf8(at.of(asked)).ok()?.parse().ok())
        .map_or(FOUND, |limit: usize| limit.clamp(1, FOUND_MAX));
    let server = object::text(asked, "server");
    let wanted = |item: &Item| {
        let is_of = |server: &str| *item.route.server == *server;
        server.as_deref().is_none_or(is_of) && sees(item)
    };
    let tools = index.find(&query, found_max, wanted);
    let said = serde_json::json!({ "tools": tools }).to_string();
    reply::told(&said, &call.id, Origin::Live)
}

/// Answers `describe_tool`; what may not be seen is as unknown as what does not exist.
pub(crate) fn describe(call: &Call, catalog: &Catalog, sees: impl Fn(&Item) -> bool) -> Reply {
    let asked = arguments(call);
    let Some(name) = object::text(asked, "name") else {
        let said = "describe_tool needs the name of a tool, as find_tools returns it";
        return reply::wrong(said, &call.id);
    };
    let mut tools = catalog.offers().flat_map(|offer| offer.tools.iter());
    let Some(item) = tools.find(|item| *item.visible == *name && sees(item)) else {
        let said = format!("there is no tool `{name}`; find_tools returns the names there are");
        return reply::wrong(&said, &call.id);
    };
    let mut said = Vec::from(&b"{\"tool\":"[..]);
    item.write_visible(&mut said);
    said.push(b'}');
    reply::told(&String::from_utf8_lossy(&said), &call.id, Origin::Live)
}

fn found(item: &Item, score: f32) -> Found {
    let definition = &item.definition;
    let schema = object::field(definition, "inputSchema").map(|at| at.of(definition));
    let schema = schema.and_then(|schema| std::str::from_utf8(schema).ok());
    let about = object::text(definition, "description").unwrap_or_default();
    Found {
        name: item.visible.as_ref().to_owned(),
        server: item.route.server.as_ref().to_owned(),
        tool: item.route.name.as_ref().to_owned(),
        signature: signature(&item.visible, schema),
        description: shortened(&about),
        effect: item.route.effect.as_str(),
        score,
    }
}

fn shortened(about: &str) -> String {
    let about = about.trim();
    match about.char_indices().nth(ABOUT_CHARS_MAX) {
        None => about.to_owned(),
        Some((cut, _)) => format!("{}…", about.get(..cut).unwrap_or_default()),
    }
}

/// Returns the words that a tool is found by.
fn text(item: &Item) -> Text {
    let definition = &item.definition;
    let said = |key| object::text(definition, key).unwrap_or_default();
    let schema = object::field(definition, "inputSchema").map(|at| at.of(definition));
    let mut parameters = String::new();
    if let Some(schema) = schema {
        gather(schema, SCHEMA_DEPTH_MAX, &mut parameters);
    }
    Text {
        name: format!(
            "{} {} {}",
            item.route.server,
            item.route.name,
            said("title")
        ),
        description: said("description").into_owned(),
        parameters,
    }
}

/// Gathers names and descriptions of the properties of a schema.
fn gather(schema: &[u8], depth: usize, out: &mut String) {
    if depth == 0 {
        return;
    }
    let Some(properties) = object::field(schema, "properties").map(|at| at.of(schema)) else {
        return;
    };
    for (name, at) in object::fields(properties) {
        let property = at.of(properties);
        out.push(' ');
        out.push_str(&name);
        if let Some(about) = object::text(property, "description") {
            out.push(' ');
            out.push_str(&about);
        }
        gather(property, depth - 1, out);
    }
}
