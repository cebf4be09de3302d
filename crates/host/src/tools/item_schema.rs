//! Schemas of the tools in the catalog.

use std::sync::Arc;

use bowline_tools::ToolSchema;

use crate::catalog::{CatalogItem, Staleness};

/// Returns the schema of a tool under its visible name.
pub(crate) fn visible_schema(item: &CatalogItem) -> ToolSchema {
    let mut definition = Vec::with_capacity(item.definition.len() + item.visible.len());
    item.write_visible(&mut definition);
    let schema = ToolSchema::from_raw(Arc::clone(&item.visible), definition.into());
    mark_staleness(schema, item)
}

/// Returns the schema of a tool under the server's own name.
pub(crate) fn own_schema(item: &CatalogItem) -> ToolSchema {
    let schema = ToolSchema::from_raw(Arc::clone(&item.route.name), item.definition.clone());
    mark_staleness(schema, item)
}

fn mark_staleness(schema: ToolSchema, item: &CatalogItem) -> ToolSchema {
    match item.staleness {
        Staleness::LastKnown => schema.into_stale(),
        Staleness::Live => schema,
    }
}
