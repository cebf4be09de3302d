//! Generated messages of every type of every schema go through the gateway unchanged, with
//! unknown members at every level of them.

mod aside;
mod client;
mod echo;
mod make;
mod modern;
mod rows;
mod trip;

use serde_json::{Value, json};

use crate::peers::{left_out, root};
use echo::Echo;
use make::Maker;
use rows::{LISTS, List, NEWS, OWN, ROWS, TASKS, UNHEARD};
use trip::{Kind, Trip, Way};

/// Instances of each type, unless `BOWLINE_ROUNDTRIP` says how many.
const INSTANCES: usize = 50;
/// Where every run begins, unless `BOWLINE_SEED` says another.
const SEED: u64 = 7;

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

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

    /// Whether requests say what they need, and results what they are.
    fn is_modern(&self) -> bool {
        self.get("RequestMetaObject").is_some()
    }

    /// Members that every whole result has.
    fn complete(&self) -> &'static [(&'static str, &'static str)] {
        match self.is_modern() {
            true => &[("resultType", "\"complete\"")],
            false => &[],
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
    let tasks = schema.get(TASKS.item).map(|_| TASKS);
    let lists: Vec<_> = LISTS.iter().copied().chain(tasks).collect();
    let offers: Vec<_> = lists
        .iter()
        .map(|list| offer(schema, &mut maker, list, instances))
        .collect();
    let given = lists.iter().zip(&offers).map(|(list, all)| {
        let text = format!("{{\"{}\":[{}]}}", list.member, all.join(","));
        (list.method.to_owned(), json!(text))
    });
    let echo = Echo::up(&Value::Object(given.collect()), schema.revision);
    let mut count = 0;
    let mut tell = |what: &str, many: usize| {
        eprintln!("{} {what}: {many}", schema.revision);
        count += many;
    };
    for (list, offered) in LISTS.iter().zip(&offers) {
        echo.lists(list, offered);
        tell(list.item, offered.len());
    }
    for row in ROWS.iter().filter(|row| row.is_in(schema)) {
        let trips: Vec<_> = (0..instances)
            .map(|at| row.trip(schema, &mut maker, at))
            .collect();
        echo.travel(row.road, &trips);
        tell(&row.name(), trips.len());
        if matches!(row.kind, Kind::Task) {
            // All that were made are listed, and no other.
            let offered = offers.last().unwrap();
            let listed = echo.list(TASKS.method, TASKS.member);
            assert_eq!(&listed, offered, "{} {}", schema.revision, TASKS.method);
            tell("Task", offered.len());
        }
    }
    for (name, fixed) in NEWS.iter().filter(|(name, _)| schema.get(name).is_some()) {
        let trips = news(schema, &mut maker, name, fixed, instances);
        let task = schema
            .get("Task")
            .map(|_| trip::made(schema, &mut maker, "task-news"));
        echo.news(&trips, task);
        tell(name, trips.len());
    }
    for (request, fixed) in OWN {
        let part = schema.get(request).unwrap();
        let params = &part["properties"]["params"];
        let made: Vec<_> = (0..instances).map(|_| maker.make(params, fixed)).collect();
        echo.own(&trip::method(part), &made);
        tell(request, made.len());
    }
    for name in UNHEARD {
        let part = schema.get(name).unwrap();
        let params = &part["properties"]["params"];
        let made: Vec<_> = (0..instances).map(|_| maker.make(params, &[])).collect();
        echo.unheard(&trip::method(part), &made);
        tell(name, made.len());
    }
    tell(
        "InitializeRequest",
        greet(schema, &mut maker, &echo, instances),
    );
    count
}

/// Makes calls during which the server says something to whom it concerns.
fn news(
    schema: &Schema,
    maker: &mut Maker<'_>,
    name: &str,
    fixed: &[(&str, &str)],
    instances: usize,
) -> Vec<Trip> {
    let plain = &ROWS[0];
    (0..instances)
        .map(|at| {
            let mut trip = plain.trip(schema, maker, at);
            trip.on_the_way = vec![trip::told(schema, maker, name, fixed, Way::Aside)];
            trip
        })
        .collect()
}

/// Opens sessions and returns how many.
fn greet(schema: &Schema, maker: &mut Maker<'_>, echo: &Echo, instances: usize) -> usize {
    let request = schema.get("InitializeRequest").unwrap();
    let revision = format!("\"{}\"", schema.revision);
    for at in 0..instances {
        let params = &request["properties"]["params"];
        let params = maker.make(params, &[("protocolVersion", &revision)]);
        let result = echo.greet(&params);
        let answered: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(answered["protocolVersion"], schema.revision, "{params}");
        assert_eq!(answered["serverInfo"]["name"], "echo", "{result}");
        if at < trip::CHECKED {
            schema.check(schema.get("InitializeResult").unwrap(), &result);
        }
    }
    instances
}

/// Makes what a list holds: the one that is called, and many that are not.
fn offer(schema: &Schema, maker: &mut Maker<'_>, list: &List, instances: usize) -> Vec<String> {
    let List {
        item,
        key,
        first,
        others,
        ..
    } = list;
    let part = schema.get(item).unwrap();
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
