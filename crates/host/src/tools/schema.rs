//! What a model is told of a tool.

use std::sync::Arc;

use bowline_wire::broker::Item as Offered;
use bowline_wire::object;
use bytes::Bytes;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::catalog::{Age, Item};

/// One tool as it is shown to a model. Written as JSON it is
/// `{"name", "description", "inputSchema"}`; nothing is left out, so a description that the tool
/// does not have is empty and a missing schema takes any object.
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

/// What a tool takes that does not say.
const ANY: &str = r#"{"type":"object"}"#;

impl ToolSchema {
    /// Returns the schema of a tool of one's own.
    #[must_use]
    pub fn new(name: &str, description: &str, input: &Value) -> Self {
        let definition = json!({"name": name, "description": description, "inputSchema": input});
        Self {
            name: name.into(),
            definition: definition.to_string().into(),
            is_stale: false,
        }
    }

    /// Takes a whole definition as MCP has it, with whatever else it says; none where it has no
    /// name.
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

    /// Returns what the catalog has of a tool, under its name among those of all servers.
    pub(crate) fn visible(item: &Item) -> Self {
        let mut definition = Vec::with_capacity(item.definition.len() + item.visible.len());
        item.write_visible(&mut definition);
        Self {
            name: Arc::clone(&item.visible),
            definition: definition.into(),
            is_stale: item.age == Age::LastKnown,
        }
    }

    /// Returns what the catalog has of a tool, under its server's own name.
    pub(crate) fn own(item: &Item) -> Self {
        Self {
            name: Arc::clone(&item.route.name),
            definition: item.definition.clone(),
            is_stale: item.age == Age::LastKnown,
        }
    }

    /// Returns what a peer has of a tool, under the name by which the peer runs it.
    pub(crate) fn offered(item: &Offered) -> Self {
        Self {
            name: Arc::clone(&item.name),
            definition: item.definition.clone(),
            is_stale: false,
        }
    }

    /// Returns the name by which it is run.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether it is known from before: its server is down or still being started, and may offer
    /// something else by then.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Returns what it says of itself; empty where it says nothing.
    #[must_use]
    pub fn description(&self) -> String {
        let text = object::text(&self.definition, "description");
        text.unwrap_or_default().into_owned()
    }

    /// Returns what it takes.
    #[must_use]
    pub fn input_schema(&self) -> Value {
        let read = serde_json::from_str(self.input_text());
        read.unwrap_or_else(|_| json!({"type": "object"}))
    }

    /// Returns the whole definition under this name, one JSON object.
    #[must_use]
    pub const fn definition(&self) -> &Bytes {
        &self.definition
    }

    fn input_text(&self) -> &str {
        let at = object::field(&self.definition, "inputSchema");
        let text = at.and_then(|at| std::str::from_utf8(at.of(&self.definition)).ok());
        text.filter(|text| text.starts_with('{')).unwrap_or(ANY)
    }
}

impl Serialize for ToolSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("ToolSchema", 3)?;
        out.serialize_field("name", &self.name)?;
        out.serialize_field("description", &self.description())?;
        let input: &RawValue =
            serde_json::from_str(self.input_text()).map_err(serde::ser::Error::custom)?;
        out.serialize_field("inputSchema", input)?;
        out.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_says_nothing_has_an_empty_description_and_takes_any_object() {
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
