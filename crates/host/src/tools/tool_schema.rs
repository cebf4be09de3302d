//! The schema of a tool, as shown to a model.

use std::sync::Arc;

use bowline_wire::broker::ManifestItem as Offered;
use bowline_wire::object;
use bytes::Bytes;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::{CatalogItem, Staleness};

/// A tool as shown to a model. Serialized as `{"name", "description", "inputSchema"}`; a missing
/// description becomes empty, and a missing schema accepts any object.
///
/// ```
/// use bowline_host::ToolSchema;
///
/// let schema = ToolSchema::new("now", "Tells the time.", &serde_json::json!({"type": "object"}));
/// assert_eq!(
///     serde_json::to_string(&schema).unwrap(),
///     r#"{"name":"now","description":"Tells the time.","inputSchema":{"type":"object"}}"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolSchema {
    name: Arc<str>,
    definition: Bytes,
    is_stale: bool,
}

/// Schema of a tool without an input schema.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

impl ToolSchema {
    /// Creates the schema of an own tool.
    #[must_use]
    pub fn new(name: &str, description: &str, input: &Value) -> Self {
        let definition = json!({"name": name, "description": description, "inputSchema": input});
        Self {
            name: name.into(),
            definition: definition.to_string().into(),
            is_stale: false,
        }
    }

    /// Creates a schema from a complete MCP definition, keeping all members; `None` without a name.
    #[must_use]
    pub fn from_definition(definition: &Value) -> Option<Self> {
        let name = definition.get("name")?.as_str()?.into();
        let definition = definition.to_string().into();
        Some(Self {
            name,
            definition,
            is_stale: false,
        })
    }

    /// Creates a schema from a catalog item, under its visible name.
    pub(crate) fn from_visible_item(item: &CatalogItem) -> Self {
        let mut definition = Vec::with_capacity(item.definition.len() + item.visible.len());
        item.write_visible(&mut definition);
        Self {
            name: Arc::clone(&item.visible),
            definition: definition.into(),
            is_stale: item.staleness == Staleness::LastKnown,
        }
    }

    /// Creates a schema from a catalog item, under the server's own name.
    pub(crate) fn from_own_item(item: &CatalogItem) -> Self {
        Self {
            name: Arc::clone(&item.route.name),
            definition: item.definition.clone(),
            is_stale: item.staleness == Staleness::LastKnown,
        }
    }

    /// Creates a schema from a peer's item, under the peer's name.
    pub(crate) fn from_peer_item(item: &Offered) -> Self {
        Self {
            name: Arc::clone(&item.name),
            definition: item.definition.clone(),
            is_stale: false,
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// True if last known: the server is down or starting, and its tools may change.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Returns the description; empty if missing.
    #[must_use]
    pub fn description(&self) -> String {
        let text = object::text_field(&self.definition, "description");
        text.unwrap_or_default().into_owned()
    }

    /// Returns the input schema.
    #[must_use]
    pub fn input_schema(&self) -> Value {
        let read = serde_json::from_str(self.input_schema_text());
        read.unwrap_or_else(|_| json!({"type": "object"}))
    }

    /// Returns the complete definition under this name, a JSON object.
    #[must_use]
    pub const fn definition(&self) -> &Bytes {
        &self.definition
    }

    fn input_schema_text(&self) -> &str {
        let at = object::field(&self.definition, "inputSchema");
        let text = at.and_then(|at| std::str::from_utf8(at.slice(&self.definition)).ok());
        text.filter(|text| text.starts_with('{'))
            .unwrap_or(ANY_OBJECT)
    }
}

impl Serialize for ToolSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("ToolSchema", 3)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("description", &self.description())?;
        let input: &RawValue =
            serde_json::from_str(self.input_schema_text()).map_err(serde::ser::Error::custom)?;
        out.serialize_field("inputSchema", input)?;
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_members_have_defaults() {
        for definition in [
            json!({"name": "t"}),
            json!({"name": "t", "description": 7, "inputSchema": null}),
        ] {
            let schema = ToolSchema::from_definition(&definition).unwrap();
            assert_eq!(
                serde_json::to_value(&schema).unwrap(),
                json!({"name": "t", "description": "", "inputSchema": {"type": "object"}})
            );
        }
        assert_eq!(ToolSchema::from_definition(&json!({"title": "t"})), None);
    }
}
