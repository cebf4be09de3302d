//! The official MCP schemas, for validating written messages.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};

/// The schema of one revision.
pub(crate) struct Schema(Value);

#[cfg(test)]
impl Schema {
    /// Loads a schema from beside the workspace; reports a skipped test if missing.
    pub(crate) fn load(revision: &str, test: &str) -> Option<Self> {
        let file = Path::new("shared/mcp-schema")
            .join(revision)
            .join("schema.json");
        let text = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .find_map(|base| std::fs::read(base.join(&file)).ok());
        let Some(text) = text else {
            report_skipped(test);
            return None;
        };
        Some(Self(serde_json::from_slice(&text).unwrap()))
    }

    /// Returns the types by name.
    pub(crate) fn definitions(&self) -> &Value {
        match self.0.get("$defs") {
            Some(all) => all,
            None => &self.0["definitions"],
        }
    }

    /// Validates a text against a type.
    pub(crate) fn assert_valid(&self, name: &str, text: &[u8]) {
        let value: Value = serde_json::from_slice(text).unwrap();
        let mut schema = self.0.clone();
        assert!(schema["$defs"].get(name).is_some(), "no {name}");
        schema["$ref"] = json!(format!("#/$defs/{name}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(&value)
            .map(|fault| format!("{fault} at {}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{value} is no {name}: {faults:?}");
    }
}

/// Names a test that is left out, past the output capture of the test harness.
fn report_skipped(test: &str) {
    let why = "no shared/mcp-schema beside the workspace";
    let _ = writeln!(std::io::stderr(), "left out: {test} ({why})");
}
