//! The schema of a tool, as shown to a model.

use std::sync::Arc;

use bowline_wire::object;
use bytes::Bytes;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A tool as shown to a model. Serialized as `{"name", "description", "inputSchema"}`; a missing
/// description becomes empty, and a missing schema accepts any object.
///
/// ```
/// use bowline_tools::ToolSchema;
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

    /// Creates a schema from the text of an MCP definition, which is not checked. `name` replaces
    /// the name of the definition.
    #[must_use]
    pub const fn from_raw(name: Arc<str>, definition: Bytes) -> Self {
        Self {
            name,
            definition,
            is_stale: false,
        }
    }

    /// Marks the schema as last known: its server does not run.
    #[must_use]
    pub fn into_stale(self) -> Self {
        Self {
            is_stale: true,
            ..self
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
