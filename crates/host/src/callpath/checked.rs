//! Whether an answer is what its tool promised: structured content against the schema that the
//! definition of the tool declares.

mod outline;
mod schema;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bowline_core::call::{Body, Call, Reply, Route, Subject};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_wire::era::result::kind;
use bowline_wire::object;
use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::catalog::CatalogStore;
use crate::spec::ServerSpec;

use self::schema::Schema;

/// Definitions that are remembered, most of which have no schema.
const DEFINITIONS_MAX: usize = 65_536;

/// Bytes of all schemas that are kept ready.
const SCHEMA_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Tools whose schema is refused and that are shown as such.
const UNCHECKED_MAX: usize = 256;

/// A tool whose results are passed on as they are, because its schema cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unchecked {
    /// The server.
    pub server: Arc<str>,
    /// The tool.
    pub tool: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
}

/// Knows the schemas of tools. Each is made ready once, when the first result of its tool comes.
#[derive(Debug, Default)]
pub(crate) struct Checker(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By the hash of the definition; `None` where there is nothing to check.
    schemas: HashMap<[u8; 32], Option<Arc<Schema>>, RandomState>,
    bytes: usize,
    unchecked: Vec<Unchecked>,
}

impl Checker {
    /// Checks structured content against the schema of its tool. A tool that declares none costs
    /// one look into a table.
    pub(crate) fn check(
        &self,
        catalog: &CatalogStore,
        call: &Call,
        (route, spec): (&Route, &ServerSpec),
        reply: &Reply,
    ) -> Result<(), CallError> {
        let is_tool = matches!(call.subject, Subject::Tool(_));
        if !is_tool || !spec.check_output || reply.body != Body::Result {
            return Ok(());
        }
        let Some(schema) = self.schema(catalog, route) else {
            return Ok(());
        };
        let result = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        // A question or a task promises nothing yet.
        if reply.era == Era::Modern && !kind(result).is_end() {
            return Ok(());
        }
        let Some(content) = promised(result) else {
            return Ok(());
        };
        schema.check(content).map_err(|wrong| CallError::BadOutput {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
            reason: wrong.to_string().into(),
        })
    }

    /// Returns the tools whose schema is refused, as far as a result of theirs was seen.
    pub(crate) fn unchecked(&self) -> Vec<Unchecked> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.unchecked.clone()
    }

    fn schema(&self, catalog: &CatalogStore, route: &Route) -> Option<Arc<Schema>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(schema) = known.schemas.get(&route.definition) {
            return schema.clone();
        }
        drop(known);
        // Where the definition changed under the call, nobody knows any more what was promised.
        let definition = definition(catalog, route)?;
        let schema = object::field(&definition, "outputSchema").map(|at| at.of(&definition));
        let schema = schema.map(Schema::compile);
        self.learn(route, schema)
    }

    fn learn(
        &self,
        route: &Route,
        schema: Option<Result<Schema, schema::Refused>>,
    ) -> Option<Arc<Schema>> {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.schemas.len() >= DEFINITIONS_MAX || known.bytes >= SCHEMA_BYTES_MAX {
            // What is needed comes back with the next result of its tool.
            *known = Known::default();
        }
        let schema = match schema {
            Some(Err(refused)) => {
                known.refuse(route, &refused);
                None
            }
            Some(Ok(schema)) => Some(Arc::new(schema)),
            None => None,
        };
        known.bytes += schema.as_ref().map_or(0, |schema| schema.bytes);
        known.schemas.insert(route.definition, schema.clone());
        schema
    }
}

impl Known {
    fn refuse(&mut self, route: &Route, refused: &schema::Refused) {
        let Route { server, name, .. } = route;
        tracing::warn!(%server, tool = %name, reason = %refused, "output schema is not used");
        self.unchecked
            .retain(|one| (&one.server, &one.tool) != (server, name));
        if self.unchecked.len() < UNCHECKED_MAX {
            self.unchecked.push(Unchecked {
                server: Arc::clone(server),
                tool: Arc::clone(name),
                reason: refused.to_string().into(),
            });
        }
    }
}

/// Returns the definition that a route was made of, if it still is the one.
fn definition(catalog: &CatalogStore, route: &Route) -> Option<Bytes> {
    let catalog = catalog.current();
    let mut items = catalog.offer(&route.server)?.tools.iter();
    let item = items.find(|item| item.route.name == route.name)?;
    (item.route.definition == route.definition).then(|| item.written.clone())
}

/// Whether a tool promises structured content.
pub(crate) fn has_output_schema(catalog: &CatalogStore, route: &Route) -> bool {
    let definition = definition(catalog, route);
    definition.is_some_and(|definition| object::field(&definition, "outputSchema").is_some())
}

/// Returns the structured content of a result that does not tell of a failure.
fn promised(result: &[u8]) -> Option<&[u8]> {
    let content = object::field(result, "structuredContent")?.of(result);
    let failed = object::field(result, "isError").is_some_and(|at| at.of(result) == b"true");
    (!failed).then_some(content)
}
