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

/// The params of a call of the one tool; a call as a task has another kind of answer.
const TOOL: &[(&str, &str)] = &[("name", "\"t\""), ("task", "")];

const fn row(request: &'static str, fixed: &'static [(&str, &str)], kind: Kind) -> Row {
    Row {
        request,
        fixed,
        kind,
    }
}

/// What goes through. A type that a revision does not know is not asked of it.
const ROWS: &[Row] = &[
    row("CallToolRequest", TOOL, Kind::Result("CallToolResult")),
    row("CallToolRequest", TOOL, Kind::Error),
    row("CallToolRequest", TOOL, Kind::Told("ProgressNotification")),
    row(
        "GetPromptRequest",
        &[("name", "\"t\"")],
        Kind::Result("GetPromptResult"),
    ),
    row(
        "ReadResourceRequest",
        &[("uri", "\"x://t\"")],
        Kind::Result("ReadResourceResult"),
    ),
    row(
        "CompleteRequest",
        &[("ref", r#"{"type":"ref/prompt","name":"t"}"#)],
        Kind::Result("CompleteResult"),
    ),
    row(
        "CallToolRequest",
        TOOL,
        Kind::Asked("CreateMessageRequest", "CreateMessageResult"),
    ),
    row(
        "CallToolRequest",
        TOOL,
        Kind::Asked("ElicitRequest", "ElicitResult"),
    ),
    row(
        "CallToolRequest",
        TOOL,
        Kind::Asked("ListRootsRequest", "ListRootsResult"),
    ),
];

/// What the gateway answers itself, however its params look.
const OWN: &[(&str, &[(&str, &str)])] = &[
    ("PingRequest", &[]),
    ("SubscribeRequest", &[("uri", "\"x://t\"")]),
    ("UnsubscribeRequest", &[("uri", "\"x://t\"")]),
    ("SetLevelRequest", &[]),
];

/// What the server offers: the method that lists it, the member it is in, its type, its key and
/// what stands there in the first and in all others.
const LISTS: &[List] = &[
    ("tools/list", "tools", "Tool", "name", "t", "t-@"),
    ("prompts/list", "prompts", "Prompt", "name", "t", "t-@"),
    (
        "resources/list",
        "resources",
        "Resource",
        "uri",
        "x://t",
        "x://t/@",
    ),
    (
        "resources/templates/list",
        "resourceTemplates",
        "ResourceTemplate",
        "uriTemplate",
        "y://t/{a}",
        "y://t/@/{a}",
    ),
];

type List = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

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
        .map(|list| offer(schema, &mut maker, list, instances))
        .collect();
    let lists = LISTS
        .iter()
        .zip(&offers)
        .map(|((method, member, ..), all)| {
            let text = format!("{{\"{member}\":[{}]}}", all.join(","));
            ((*method).to_owned(), json!(text))
        });
    let echo = Echo::up(&Value::Object(lists.collect()), schema.revision);
    let mut count = 0;
    let mut tell = |what: &str, many: usize| {
        eprintln!("{} {what}: {many}", schema.revision);
        count += many;
    };
    for ((method, member, name, ..), offered) in LISTS.iter().zip(&offers) {
        let listed = echo.list(method, member);
        assert_eq!(&listed, offered, "{method} of {}", schema.revision);
        tell(name, offered.len());
    }
    for row in ROWS.iter().filter(|row| row.is_in(schema)) {
        let trips: Vec<_> = (0..instances)
            .map(|at| row.trip(schema, &mut maker, at))
            .collect();
        echo.travel(&trips);
        tell(&row.name(), trips.len());
    }
    for (request, fixed) in OWN {
        let part = schema.get(request).unwrap();
        let params = &part["properties"]["params"];
        let made: Vec<_> = (0..instances).map(|_| maker.make(params, fixed)).collect();
        echo.own(&trip::method(part), &made);
        tell(request, made.len());
    }
    count
}

/// Makes what a list holds: the one that is called, and many that are not.
fn offer(schema: &Schema, maker: &mut Maker<'_>, list: &List, instances: usize) -> Vec<String> {
    let (_, _, name, key, first, others) = list;
    let part = schema.get(name).unwrap();
    (0..instances)
        .map(|at| {
            let own = match at {
                0 => format!("\"{first}\""),
                _ => format!("\"{}\"", others.replace('@', &at.to_string())),
            };
            let text = maker.make(part, &[(key, &own)]);
            if at < trip::CHECKED {
                schema.check(part, &text);
            }
            text
        })
        .collect()
}
