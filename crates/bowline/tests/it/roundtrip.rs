//! Generated messages of every type of every legacy schema go through the gateway unchanged, with
//! unknown members at every level of them.

mod echo;
mod make;
mod trip;

use serde_json::{Value, json};

use crate::peers::{left_out, root};
use echo::Echo;
use make::Maker;
use trip::{Kind, Row};

/// Instances of each type, unless `BOWLINE_ROUNDTRIP` says how many.
const INSTANCES: usize = 100;
/// Where every run begins, unless `BOWLINE_SEED` says another.
const SEED: u64 = 7;

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// What goes through. A type that a revision does not know is not asked of it.
const ROWS: &[Row] = &[
    Row {
        request: "CallToolRequest",
        fixed: &[("name", "\"t\""), ("task", "")],
        kind: Kind::Result("CallToolResult"),
    },
    Row {
        request: "CallToolRequest",
        fixed: &[("name", "\"t\""), ("task", "")],
        kind: Kind::Error,
    },
    Row {
        request: "CallToolRequest",
        fixed: &[("name", "\"t\""), ("task", "")],
        kind: Kind::Told("ProgressNotification"),
    },
];

/// What the server offers: the method that lists it, the member it is in, its type, its key.
const LISTS: &[(&str, &str, &str, &str)] = &[("tools/list", "tools", "Tool", "name")];

/// The schema of one revision.
struct Schema {
    revision: &'static str,
    all: Value,
}

impl Schema {
    fn load(revision: &'static str) -> Option<Self> {
        let file = format!("shared/mcp-schema/{revision}/schema.json");
        let text = root()
            .ancestors()
            .find_map(|base| std::fs::read(base.join(&file)).ok())?;
        let all = serde_json::from_slice(&text).unwrap();
        Some(Self { revision, all })
    }

    fn types(&self) -> &'static str {
        if self.all.get("$defs").is_some() {
            "$defs"
        } else {
            "definitions"
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.all[self.types()].get(name)
    }

    /// Fails unless a text is an instance of a part of this schema.
    fn check(&self, part: &Value, text: &str) {
        let mut schema = part.clone();
        let types = self.types();
        schema[types] = self.all[types].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        // The largest is a number by the grammar, and too large for the type that checks it.
        let text = text.replace("1e400", "1e40");
        let instance: Value = serde_json::from_str(&text).unwrap();
        let faults: Vec<_> = validator
            .iter_errors(&instance)
            .map(|fault| format!("{fault} at {}", fault.instance_path()))
            .collect();
        assert!(faults.is_empty(), "{text} by {part}: {faults:?}");
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn generated_messages_of_every_legacy_schema_go_through_unchanged() {
    let schemas: Vec<_> = REVISIONS.into_iter().filter_map(Schema::load).collect();
    if schemas.len() < REVISIONS.len() {
        let test = "generated_messages_of_every_legacy_schema_go_through_unchanged";
        return left_out(test, "no shared/mcp-schema beside the workspace");
    }
    let instances = number("BOWLINE_ROUNDTRIP").map_or(INSTANCES, |n| n.try_into().unwrap());
    let seed = number("BOWLINE_SEED").unwrap_or(SEED);
    eprintln!("BOWLINE_SEED={seed}");
    let mut all = 0;
    for schema in &schemas {
        all += walk(schema, instances, seed);
    }
    eprintln!("{all} instances");
}

/// Sends everything of one revision and returns how much that was.
fn walk(schema: &Schema, instances: usize, seed: u64) -> usize {
    let mut maker = Maker::new(&schema.all, seed);
    let offers: Vec<_> = LISTS
        .iter()
        .map(|(_, _, name, key)| offer(schema, &mut maker, name, key, instances))
        .collect();
    let lists = LISTS
        .iter()
        .zip(&offers)
        .map(|((method, member, ..), all)| {
            let all = all.join(",");
            (
                (*method).to_owned(),
                json!(format!("{{\"{member}\":[{all}]}}")),
            )
        });
    let echo = Echo::up(&Value::Object(lists.collect()));
    let mut count = 0;
    for ((method, member, ..), offered) in LISTS.iter().zip(&offers) {
        let listed = echo.list(schema.revision, method, member);
        assert_eq!(&listed, offered, "{method} of {}", schema.revision);
        count += offered.len();
    }
    for row in ROWS.iter().filter(|row| row.is_in(schema)) {
        let trips: Vec<_> = (0..instances)
            .map(|at| row.trip(schema, &mut maker, at))
            .collect();
        echo.travel(schema.revision, &trips);
        count += trips.len();
        eprintln!("{} {}: {}", schema.revision, row.name(), trips.len());
    }
    count
}

/// Makes what a list holds: the one that is called, and many that are not.
fn offer(
    schema: &Schema,
    maker: &mut Maker<'_>,
    name: &str,
    key: &str,
    instances: usize,
) -> Vec<String> {
    let Some(part) = schema.get(name) else {
        return Vec::new();
    };
    (0..instances)
        .map(|at| {
            let own = match at {
                0 => "\"t\"".to_owned(),
                _ => format!("\"t-{at}\""),
            };
            let text = maker.make(part, &[(key, &own)]);
            if at < trip::CHECKED {
                schema.check(part, &text);
            }
            text
        })
        .collect()
}
