//! Validates structured content against the tool's declared output schema.

#[cfg(feature = "schema")]
mod compiled_schema;
#[cfg(not(feature = "schema"))]
#[path = "output_schema/no_schema.rs"]
mod compiled_schema;
#[cfg(feature = "schema")]
mod schema_outline;
#[cfg(test)]
#[cfg(feature = "schema")]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bowline_core::call::{BodyKind, CallReply, CallRequest, CallSubject, Route};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_wire::era::result_translation::result_kind;
use bowline_wire::object;
use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::catalog::CatalogStore;
use crate::spec::ServerSpec;

use self::compiled_schema::CompiledSchema;

/// Cached definitions; most have no schema.
const DEFINITIONS_MAX: usize = 65_536;

/// Total bytes of compiled schemas in the cache.
const SCHEMA_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum number of reported tools with an unusable schema.
const UNCHECKED_MAX: usize = 256;

/// A tool with an output schema that is not used; its results pass unchecked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncheckedTool {
    /// The server.
    pub server: Arc<str>,
    /// The tool.
    pub tool: Arc<str>,
    /// Why the schema is not used.
    pub reason: Arc<str>,
}

/// Validates results. Compiles each schema once, on the first result of its tool.
#[derive(Debug, Default)]
pub(crate) struct OutputValidator(RwLock<SchemaCache>);

#[derive(Debug, Default)]
struct SchemaCache {
    /// By definition hash; `None` without a usable schema.
    schemas: HashMap<[u8; 32], Option<Arc<CompiledSchema>>, RandomState>,
    bytes: usize,
    unchecked: Vec<UncheckedTool>,
}

impl OutputValidator {
    /// Validates structured content. A tool without a schema costs a single table lookup.
    pub(crate) fn validate(
        &self,
        catalog: &CatalogStore,
        call: &CallRequest,
        route: &Route,
        spec: &ServerSpec,
        reply: &CallReply,
    ) -> Result<(), CallError> {
        let is_tool = matches!(call.subject, CallSubject::Tool(_));
        if !is_tool || !spec.check_output || reply.response.body != BodyKind::Result {
            return Ok(());
        }
        let Some(schema) = self.schema_for(catalog, route) else {
            return Ok(());
        };
        let result = reply.response.body_bytes();
        // An input request or a task has no structured content yet.
        if reply.response.era == Era::Modern && !result_kind(result).is_final() {
            return Ok(());
        }
        let Some(content) = structured_content(result) else {
            return Ok(());
        };
        schema
            .validate(content)
            .map_err(|wrong| CallError::BadOutput {
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
                reason: wrong.to_string().into(),
            })
    }

    /// Returns the tools with unusable schemas, among tools with results so far.
    pub(crate) fn unchecked_tools(&self) -> Vec<UncheckedTool> {
        let cache = self.0.read().unwrap_or_else(PoisonError::into_inner);
        cache.unchecked.clone()
    }

    fn schema_for(&self, catalog: &CatalogStore, route: &Route) -> Option<Arc<CompiledSchema>> {
        let cache = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = cache.schemas.get(&route.definition_hash) {
            return schema.clone();
        }
        drop(cache);
        // If the definition changed during the call, its schema at call time is unknown.
        let definition = current_definition(catalog, route)?;
        let schema = object::field(&definition, "outputSchema").map(|at| at.slice(&definition));
        let schema = schema.map(CompiledSchema::compile);
        self.insert_schema(route, schema)
    }

    fn insert_schema(
        &self,
        route: &Route,
        schema: Option<Result<CompiledSchema, compiled_schema::SchemaError>>,
    ) -> Option<Arc<CompiledSchema>> {
        let mut cache = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if cache.schemas.len() >= DEFINITIONS_MAX || cache.bytes >= SCHEMA_BYTES_MAX {
            // Entries in use return with the next result.
            *cache = SchemaCache::default();
        }
        let schema = match schema {
            Some(Err(refused)) => {
                cache.record_unusable(route, &refused);
                None
            }
            Some(Ok(schema)) => Some(Arc::new(schema)),
            None => None,
        };
        cache.bytes += schema.as_ref().map_or(0, |schema| schema.bytes());
        cache.schemas.insert(route.definition_hash, schema.clone());
        schema
    }
}

impl SchemaCache {
    fn record_unusable(&mut self, route: &Route, refused: &compiled_schema::SchemaError) {
        let Route { server, name, .. } = route;
        tracing::warn!(%server, tool = %name, reason = %refused, "output schema is not used");
        self.unchecked
            .retain(|one| (&one.server, &one.tool) != (server, name));
        if self.unchecked.len() < UNCHECKED_MAX {
            self.unchecked.push(UncheckedTool {
                server: Arc::clone(server),
                tool: Arc::clone(name),
                reason: refused.to_string().into(),
            });
        }
    }
}

/// Returns the definition behind a route, if unchanged.
fn current_definition(catalog: &CatalogStore, route: &Route) -> Option<Bytes> {
    let catalog = catalog.current();
    let mut items = catalog.server(&route.server)?.tools.iter();
    let item = items.find(|item| item.route.name == route.name)?;
    (item.route.definition_hash == route.definition_hash).then(|| item.raw_definition.clone())
}

/// True if a tool declares an output schema.
pub(crate) fn has_output_schema(catalog: &CatalogStore, route: &Route) -> bool {
    let definition = current_definition(catalog, route);
    definition.is_some_and(|definition| object::field(&definition, "outputSchema").is_some())
}

/// Returns the structured content of a successful result.
fn structured_content(result: &[u8]) -> Option<&[u8]> {
    let content = object::field(result, "structuredContent")?.slice(result);
    let failed = object::field(result, "isError").is_some_and(|at| at.slice(result) == b"true");
    (!failed).then_some(content)
}
