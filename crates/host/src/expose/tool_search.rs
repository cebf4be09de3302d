//! Tool search over the catalog, and rendering of its results.

use bowline_api::tools::FoundTool;
use bowline_core::call::{CallReply, CallRequest, ReplyOrigin};
use bowline_core::search::{self, ToolText};
use bowline_wire::object;

use super::call_arguments;
use crate::catalog::{Catalog, CatalogItem};
use crate::local_reply;
use crate::tools::signature::tool_signature;

/// Maximum results of a search.
pub const FOUND_MAX: usize = 50;

/// Default results of a search.
const FOUND_DEFAULT: usize = 8;

/// Maximum characters of a shown description.
const DESCRIPTION_CHARS_MAX: usize = 300;

/// Maximum schema depth searched for parameter names.
const SCHEMA_DEPTH_MAX: usize = 4;

/// Search index over the tools of a catalog.
#[derive(Debug)]
pub(crate) struct ToolSearchIndex {
    /// Catalog version.
    pub(crate) version: u64,
    index: search::SearchIndex,
    items: Vec<CatalogItem>,
}

impl ToolSearchIndex {
    /// Builds the index over all listed tools.
    pub(crate) fn from_catalog(catalog: &Catalog) -> Self {
        let tools = catalog.servers().flat_map(|offer| offer.tools.iter());
        let items: Vec<CatalogItem> = tools.cloned().collect();
        Self {
            version: catalog.version,
            index: search::SearchIndex::from_tools(items.iter().map(searchable_text)),
            items,
        }
    }

    /// Returns the best visible matches of a query.
    pub(crate) fn search(
        &self,
        query: &str,
        found_max: usize,
        sees: impl Fn(&CatalogItem) -> bool,
    ) -> Vec<FoundTool> {
        let may = |nth: usize| self.items.get(nth).is_some_and(&sees);
        let hits = self
            .index
            .search_tools(query, found_max.min(FOUND_MAX), may);
        let found = hits.into_iter().filter_map(|hit| {
            let item = self.items.get(hit.tool_index)?;
            Some(to_found_tool(item, hit.score))
        });
        found.collect()
    }
}

/// Handles `find_tools`.
pub(crate) fn handle_find(
    call: &CallRequest,
    index: &ToolSearchIndex,
    sees: impl Fn(&CatalogItem) -> bool,
) -> CallReply {
    let arguments = call_arguments(call);
    let Some(query) =
        object::text_field(arguments, "query").filter(|query| !query.trim().is_empty())
    else {
        let text = "find_tools needs a query: what the tool should do, in a few words";
        return local_reply::error_reply(text, &call.message.id);
    };
    let found_max = object::field(arguments, "limit")
        .and_then(|at| std::str::from_utf8(at.slice(arguments)).ok()?.parse().ok())
        .map_or(FOUND_DEFAULT, |limit: usize| limit.clamp(1, FOUND_MAX));
    let server = object::text_field(arguments, "server");
    let is_match = |item: &CatalogItem| {
        let is_of = |server: &str| *item.route.server == *server;
        server.as_deref().is_none_or(is_of) && sees(item)
    };
    let tools = index.search(&query, found_max, is_match);
    let text = serde_json::json!({ "tools": tools }).to_string();
    local_reply::structured_reply(&text, &call.message.id, ReplyOrigin::Live)
}

/// Handles `describe_tool`; an invisible tool is reported as unknown.
pub(crate) fn handle_describe(
    call: &CallRequest,
    catalog: &Catalog,
    sees: impl Fn(&CatalogItem) -> bool,
) -> CallReply {
    let arguments = call_arguments(call);
    let Some(name) = object::text_field(arguments, "name") else {
        let text = "describe_tool needs the name of a tool, as find_tools returns it";
        return local_reply::error_reply(text, &call.message.id);
    };
    let mut tools = catalog.servers().flat_map(|offer| offer.tools.iter());
    let Some(item) = tools.find(|item| *item.visible == *name && sees(item)) else {
        let text = format!("there is no tool `{name}`; find_tools returns the names there are");
        return local_reply::error_reply(&text, &call.message.id);
    };
    let mut text = Vec::from(&b"{\"tool\":"[..]);
    item.write_visible(&mut text);
    text.push(b'}');
    local_reply::structured_reply(
        &String::from_utf8_lossy(&text),
        &call.message.id,
        ReplyOrigin::Live,
    )
}

fn to_found_tool(item: &CatalogItem, score: f32) -> FoundTool {
    let definition = &item.definition;
    let schema = object::field(definition, "inputSchema").map(|at| at.slice(definition));
    let schema = schema.and_then(|schema| std::str::from_utf8(schema).ok());
    let about = object::text_field(definition, "description").unwrap_or_default();
    FoundTool {
        name: item.visible.as_ref().to_owned(),
        server: item.route.server.as_ref().to_owned(),
        tool: item.route.name.as_ref().to_owned(),
        signature: tool_signature(&item.visible, schema),
        description: truncate_description(&about),
        effect: item.route.effect.as_str().into(),
        score,
    }
}

fn truncate_description(about: &str) -> String {
    let about = about.trim();
    match about.char_indices().nth(DESCRIPTION_CHARS_MAX) {
        None => about.to_owned(),
        Some((cut, _)) => format!("{}…", about.get(..cut).unwrap_or_default()),
    }
}

/// Returns the searchable text of a tool.
fn searchable_text(item: &CatalogItem) -> ToolText {
    let definition = &item.definition;
    let field_text = |key| object::text_field(definition, key).unwrap_or_default();
    let schema = object::field(definition, "inputSchema").map(|at| at.slice(definition));
    let mut parameters = String::new();
    if let Some(schema) = schema {
        collect_properties(schema, SCHEMA_DEPTH_MAX, &mut parameters);
    }
    ToolText {
        name: format!(
            "{} {} {}",
            item.route.server,
            item.route.name,
            field_text("title")
        ),
        description: field_text("description").into_owned(),
        parameters,
    }
}

/// Collects names and descriptions of schema properties.
fn collect_properties(schema: &[u8], depth: usize, out: &mut String) {
    if depth == 0 {
        return;
    }
    let Some(properties) = object::field(schema, "properties").map(|at| at.slice(schema)) else {
        return;
    };
    for (name, at) in object::fields(properties) {
        let property = at.slice(properties);
        out.push(' ');
        out.push_str(&name);
        if let Some(about) = object::text_field(property, "description") {
            out.push(' ');
            out.push_str(&about);
        }
        collect_properties(property, depth - 1, out);
    }
}
