//! Generates instances of a JSON schema as text: valid, with unusual but legal spellings.

use fastrand::Rng;
use serde_json::Value;

/// Below this depth only required members are generated.
const DEPTH_MAX: usize = 7;

/// The generator for a schema file.
pub(super) struct InstanceGenerator<'a> {
    /// The whole file, for references.
    root: &'a Value,
    rng: Rng,
    /// Makes the keys of unknown members unique.
    unknown_count: u32,
}

/// Texts that are easily damaged in transit: escapes, alternative spellings of a character,
/// characters outside the basic plane, line-end look-alikes, keys with a meaning.
const TEXTS: &[&str] = &[
    "",
    "a",
    "plain text",
    "\\u0041\\u00e9\\ud83e\\uddf6",
    "\\\"quoted\\\" \\\\ \\/ \\b\\f\\n\\r\\t",
    "\u{1f9f6} – ä ß \u{2028} \u{2029} \u{feff} \u{7f}",
    "\\u0000",
    "data: not an event\\n\\n",
    "</script>",
    "progressToken",
    "1e5",
];

const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-17",
    "0.1",
    "1.0",
    "1.50",
    "-2.5e-3",
    "1E+2",
    "1e400",
    "123456789012345678901234567890",
    "9007199254740993",
    "0.1000000000000000055511151231257827",
];

const INTEGERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "-17",
    "9007199254740993",
    "18446744073709551616",
    "-123456789012345678901234567890",
];

impl<'a> InstanceGenerator<'a> {
    pub(super) fn new(root: &'a Value, seed: u64) -> Self {
        Self {
            root,
            rng: Rng::with_seed(seed),
            unknown_count: 0,
        }
    }

    /// Makes an instance of a schema; `fixed` members of the outermost object have the given text,
    /// or are omitted if it is empty.
    pub(super) fn make_instance(&mut self, schema: &Value, fixed: &[(&str, &str)]) -> String {
        let mut out = String::new();
        self.write_value(&mut out, schema, 0, fixed);
        out
    }

    pub(super) fn pick_from<'b, T: ?Sized>(&mut self, from: &[&'b T]) -> &'b T {
        from[self.rng.usize(..from.len())]
    }

    fn one_in(&mut self, of: usize) -> bool {
        self.rng.usize(..of) == 0
    }

    /// Resolves references to the target schema.
    pub(super) fn resolve_references<'b>(&self, mut schema: &'b Value) -> &'b Value
    where
        'a: 'b,
    {
        while let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let path = reference.strip_prefix('#').unwrap();
            schema = self.root.pointer(path).unwrap();
        }
        schema
    }

    fn write_value(
        &mut self,
        out: &mut String,
        schema: &Value,
        depth: usize,
        fixed: &[(&str, &str)],
    ) {
        let root = self.root;
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let target = root.pointer(reference.strip_prefix('#').unwrap()).unwrap();
            return self.write_value(out, target, depth, fixed);
        }
        if let Some(value) = schema.get("const") {
            return out.push_str(&value.to_string());
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            let at = self.rng.usize(..values.len());
            return out.push_str(&values[at].to_string());
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(ways) = schema.get(key).and_then(Value::as_array) {
                // At depth the first alternative, the simplest, ends a recursion.
                let at = if depth > DEPTH_MAX {
                    0
                } else {
                    self.rng.usize(..ways.len())
                };
                return self.write_value(out, &ways[at], depth, fixed);
            }
        }
        let kind = match schema.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => kinds[self.rng.usize(..kinds.len())].as_str().unwrap(),
            _ if schema.get("properties").is_some() || schema.get("allOf").is_some() => "object",
            _ => return self.write_any(out, depth),
        };
        match kind {
            "object" => self.write_object(out, schema, depth, fixed),
            "array" => self.write_array(out, schema, depth),
            "string" => self.write_string(out, schema),
            "integer" => self.write_number(out, schema, INTEGERS),
            "number" => self.write_number(out, schema, NUMBERS),
            "boolean" => out.push_str(self.pick_from(&["true", "false"])),
            "null" => out.push_str("null"),
            other => panic!("unknown type {other}"),
        }
    }

    fn write_object(
        &mut self,
        out: &mut String,
        schema: &Value,
        depth: usize,
        fixed: &[(&str, &str)],
    ) {
        let mut members: Vec<(String, Option<&Value>)> = Vec::new();
        let mut required: Vec<&str> = Vec::new();
        let mut open = Some(&Value::Null);
        self.collect_members(schema, &mut members, &mut required, &mut open);
        members.retain(|(key, _)| {
            let wanted = fixed.iter().find(|(name, _)| name == key);
            match wanted {
                Some((_, text)) => !text.is_empty(),
                None => required.contains(&key.as_str()) || (depth <= DEPTH_MAX && self.one_in(2)),
            }
        });
        for (key, text) in fixed {
            if !text.is_empty() && !members.iter().any(|(name, _)| name == key) {
                members.push(((*key).to_owned(), None));
            }
        }
        if let Some(schema) = open
            && depth <= DEPTH_MAX
        {
            for _ in 0..1 + self.rng.usize(..2) {
                self.unknown_count += 1;
                let text = self.pick_from(TEXTS);
                // Any key may occur if the schema describes additional values; otherwise an unknown
                // key.
                members.push((format!("x-{}{text}", self.unknown_count), Some(schema)));
            }
        }
        self.rng.shuffle(&mut members);
        out.push('{');
        for (at, (key, schema)) in members.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            self.write_space(out);
            out.push_str(&format!("\"{key}\""));
            self.write_space(out);
            out.push(':');
            self.write_space(out);
            match (fixed.iter().find(|(name, _)| name == key), schema) {
                (Some((_, text)), _) => out.push_str(text),
                (None, Some(schema)) => self.write_value(out, schema, depth + 1, &[]),
                (None, None) => self.write_any(out, depth + 1),
            }
        }
        self.write_space(out);
        out.push('}');
    }

    /// Collects the members of a schema and of the parents. `open` becomes the schema of additional
    /// members: `None` if forbidden.
    fn collect_members<'b>(
        &self,
        schema: &'b Value,
        members: &mut Vec<(String, Option<&'b Value>)>,
        required: &mut Vec<&'b str>,
        open: &mut Option<&'b Value>,
    ) where
        'a: 'b,
    {
        let schema = self.resolve_references(schema);
        for part in schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.collect_members(part, members, required, open);
        }
        let own = schema.get("properties").and_then(Value::as_object);
        for (key, schema) in own.into_iter().flatten() {
            if !members.iter().any(|(name, _)| name == key) {
                members.push((key.clone(), Some(schema)));
            }
        }
        let names = schema.get("required").and_then(Value::as_array);
        required.extend(
            names
                .into_iter()
                .flatten()
                .map(|name| name.as_str().unwrap()),
        );
        match schema.get("additionalProperties") {
            Some(Value::Bool(false)) => *open = None,
            Some(other @ Value::Object(_)) => *open = Some(other),
            _ => {}
        }
    }

    fn write_array(&mut self, out: &mut String, schema: &Value, depth: usize) {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let more = if depth > DEPTH_MAX {
            0
        } else {
            self.rng.usize(..3)
        };
        out.push('[');
        for at in 0..least + more {
            if at > 0 {
                out.push(',');
            }
            self.write_space(out);
            self.write_value(out, &schema["items"], depth + 1, &[]);
        }
        out.push(']');
    }

    fn write_string(&mut self, out: &mut String, schema: &Value) {
        let text = match schema.get("format").and_then(Value::as_str) {
            Some("byte") => self.pick_from(&["", "AA==", "R0lGODlh"]),
            Some("uri") => self.pick_from(&["file:///a%20b", "x://y/z?q=1#f", "urn:a:b"]),
            Some("uri-template") => self.pick_from(&["file:///{path}", "x://{+a}{?b}"]),
            _ => self.pick_from(TEXTS),
        };
        out.push_str(&format!("\"{text}\""));
    }

    fn write_number(&mut self, out: &mut String, schema: &Value, from: &[&str]) {
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        let text = match (bound("minimum"), bound("maximum")) {
            (None, None) => self.pick_from(from),
            (least, most) => {
                let fits = |text: &&&str| {
                    let number: f64 = text.parse().unwrap();
                    least.is_none_or(|least| number >= least) && most.is_none_or(|it| number <= it)
                };
                let fitting: Vec<&str> = from.iter().filter(fits).copied().collect();
                self.pick_from(&fitting)
            }
        };
        out.push_str(text);
    }

    /// Any JSON value.
    fn write_any(&mut self, out: &mut String, depth: usize) {
        let most = if depth > DEPTH_MAX { 5 } else { 7 };
        match self.rng.usize(..most) {
            0 => out.push_str("null"),
            1 => out.push_str(self.pick_from(&["true", "false"])),
            2 => out.push_str(self.pick_from(NUMBERS)),
            3 | 4 => {
                let text = self.pick_from(TEXTS);
                out.push_str(&format!("\"{text}\""));
            }
            5 => self.write_array(out, &serde_json::json!({"items": {}}), depth),
            _ => self.write_object(out, &Value::Null, depth, &[]),
        }
    }

    /// Optional white space; no line ends, because stdio messages are lines.
    fn write_space(&mut self, out: &mut String) {
        if self.one_in(8) {
            out.push_str(self.pick_from(&[" ", "  ", "\t"]));
        }
    }
}
