//! The official MCP schemas, against which tests hold written messages.

use std::path::Path;

use serde_json::{Value, json};

use crate::omitted_test::report_omitted;
use crate::workspace::find_beside_workspace;

/// The schema of one revision.
#[derive(Debug)]
pub struct McpSchema {
    /// The revision, such as `2025-11-25`.
    pub revision: &'static str,
    /// The whole schema.
    pub document: Value,
}

impl McpSchema {
    /// Loads a schema. Where the schemas are missing, `test` is reported as left out.
    #[must_use]
    pub fn load(revision: &'static str, test: &str) -> Option<Self> {
        let schema = Self::read(revision);
        if schema.is_none() {
            report_omitted(test, "no shared/mcp-schema beside the workspace");
        }
        schema
    }

    /// Loads all of these schemas, or reports that `test` is left out.
    #[must_use]
    pub fn load_all<const N: usize>(revisions: [&'static str; N], test: &str) -> Option<Vec<Self>> {
        revisions
            .map(|revision| Self::load(revision, test))
            .into_iter()
            .collect()
    }

    fn read(revision: &'static str) -> Option<Self> {
        let path = Path::new("shared/mcp-schema")
            .join(revision)
            .join("schema.json");
        let text = std::fs::read(find_beside_workspace(&path)?).unwrap();
        let document = serde_json::from_slice(&text).unwrap();
        Some(Self { revision, document })
    }

    /// The member with the types: `$defs` since 2025-11-25.
    fn types_key(&self) -> &'static str {
        match self.document.get("$defs") {
            Some(_) => "$defs",
            None => "definitions",
        }
    }

    /// Returns the types by name.
    #[must_use]
    pub fn types(&self) -> &Value {
        &self.document[self.types_key()]
    }

    /// Returns the schema of a type.
    #[must_use]
    pub fn find_type(&self, name: &str) -> Option<&Value> {
        self.types().get(name)
    }

    /// Whether requests carry `_meta` members, and results a type.
    #[must_use]
    pub fn is_modern(&self) -> bool {
        self.find_type("RequestMetaObject").is_some()
    }

    /// Returns the name of the type that this revision has under one of two names.
    fn either_type(&self, newer: &'static str, older: &'static str) -> &'static str {
        match self.find_type(newer) {
            Some(_) => newer,
            None => older,
        }
    }

    /// Fails unless the value is an instance of a type.
    pub fn assert_valid(&self, name: &str, value: &Value) {
        assert!(self.find_type(name).is_some(), "no {name}");
        let part = json!({"$ref": format!("#/{}/{name}", self.types_key())});
        self.assert_valid_part(&part, value);
    }

    /// Fails unless the JSON text is an instance of a type.
    pub fn assert_valid_text(&self, name: &str, text: &[u8]) {
        self.assert_valid(name, &serde_json::from_slice(text).unwrap());
    }

    /// Fails unless the message is a response, and the result in it an instance of a type.
    pub fn assert_valid_result(&self, name: &str, message: &Value) {
        let response = self.either_type("JSONRPCResultResponse", "JSONRPCResponse");
        self.assert_valid(response, message);
        self.assert_valid(name, &message["result"]);
    }

    /// Fails unless the message is an error response.
    pub fn assert_valid_error(&self, message: &Value) {
        let error = self.either_type("JSONRPCErrorResponse", "JSONRPCError");
        self.assert_valid(error, message);
    }

    /// Fails unless the value is an instance of `part`, a schema that may name types.
    pub fn assert_valid_part(&self, part: &Value, value: &Value) {
        let mut schema = part.clone();
        schema[self.types_key()] = self.types().clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(value)
            .map(|fault| format!("{fault} at {}", fault.instance_path()))
            .collect();
        let revision = self.revision;
        assert!(
            faults.is_empty(),
            "{value} is no {part} of {revision}: {faults:?}"
        );
    }
}
