//! Generated messages of every type of every schema pass through the gateway unchanged, with
//! unknown members at every level.

mod byte_client;
mod echo_gateway;
mod instances;
mod modern;
mod notifications;
mod round_trip;
mod trip_specs;

use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use echo_gateway::EchoGateway;
use instances::InstanceGenerator;
use round_trip::{MessageHandling, RoundTrip, TripKind};
use trip_specs::{
    GATEWAY_REQUESTS, LISTS, ListSpec, OBJECT_NOTIFICATIONS, TASKS, TRIP_SPECS, UNFORWARDED,
};

/// Instances of each type, unless `BOWLINE_ROUNDTRIP` sets another number.
const INSTANCES: usize = 50;
/// Seed of every run, unless `BOWLINE_SEED` sets another.
const SEED: u64 = 7;

const REVISIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// Members of every complete result.
fn complete_members(schema: &McpSchema) -> &'static [(&'static str, &'static str)] {
    match schema.is_modern() {
        true => &[("resultType", "\"complete\"")],
        false => &[],
    }
}

/// Fails unless `text` is an instance of a part of this schema.
fn assert_part_valid(schema: &McpSchema, part: &Value, text: &str) {
    // The largest number is valid by the grammar, and too large for the validator's type.
    let text = text.replace("1e400", "1e40");
    schema.assert_valid_part(part, &serde_json::from_str(&text).unwrap());
}

fn env_number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn generated_legacy_messages_pass_unchanged() {
    let test = "generated_legacy_messages_pass_unchanged";
    let Some(schemas) = McpSchema::load_all(REVISIONS, test) else {
        return;
    };
    let instances = env_number("BOWLINE_ROUNDTRIP").map_or(INSTANCES, |n| n.try_into().unwrap());
    let seed = env_number("BOWLINE_SEED").unwrap_or(SEED);
    eprintln!("BOWLINE_SEED={seed}");
    let mut all = 0;
    for schema in &schemas {
        all += run_revision(schema, instances, seed);
    }
    eprintln!("{all} instances");
}

/// Sends all message types of a revision and returns the count.
fn run_revision(schema: &McpSchema, instances: usize, seed: u64) -> usize {
    let mut maker = InstanceGenerator::new(&schema.document, seed);
    let tasks = schema.find_type(TASKS.item).map(|_| TASKS);
    let lists: Vec<_> = LISTS.iter().copied().chain(tasks).collect();
    let offers: Vec<_> = lists
        .iter()
        .map(|list| make_list_items(schema, &mut maker, list, instances))
        .collect();
    let given = lists.iter().zip(&offers).map(|(list, all)| {
        let text = format!("{{\"{}\":[{}]}}", list.member, all.join(","));
        (list.method.to_owned(), json!(text))
    });
    let echo = EchoGateway::start(&Value::Object(given.collect()), schema.revision);
    let mut count = 0;
    let mut tell = |what: &str, many: usize| {
        eprintln!("{} {what}: {many}", schema.revision);
        count += many;
    };
    for (list, offered) in LISTS.iter().zip(&offers) {
        echo.assert_lists_equal(list, offered);
        tell(list.item, offered.len());
    }
    for row in TRIP_SPECS.iter().filter(|row| row.is_in(schema)) {
        let trips: Vec<_> = (0..instances)
            .map(|at| row.make_trip(schema, &mut maker, at))
            .collect();
        echo.assert_trips(row.endpoint, &trips);
        tell(&row.case_name(), trips.len());
        if matches!(row.kind, TripKind::Task) {
            // Exactly the generated items are listed.
            let offered = offers.last().unwrap();
            let listed = echo.list_items(TASKS.method, TASKS.member);
            assert_eq!(&listed, offered, "{} {}", schema.revision, TASKS.method);
            tell("Task", offered.len());
        }
    }
    for (name, fixed) in OBJECT_NOTIFICATIONS
        .iter()
        .filter(|(name, _)| schema.find_type(name).is_some())
    {
        let trips = make_notification_trips(schema, &mut maker, name, fixed, instances);
        let task = schema
            .find_type("Task")
            .map(|_| round_trip::make_task_response(schema, &mut maker, "task-news"));
        echo.assert_session_notifications(&trips, task);
        tell(name, trips.len());
    }
    for (request, fixed) in GATEWAY_REQUESTS {
        let part = schema.find_type(request).unwrap();
        let params = &part["properties"]["params"];
        let made: Vec<_> = (0..instances)
            .map(|_| maker.make_instance(params, fixed))
            .collect();
        echo.assert_gateway_results(&round_trip::method_name(part), &made);
        tell(request, made.len());
    }
    for name in UNFORWARDED {
        let part = schema.find_type(name).unwrap();
        let params = &part["properties"]["params"];
        let made: Vec<_> = (0..instances)
            .map(|_| maker.make_instance(params, &[]))
            .collect();
        echo.assert_unheard(&round_trip::method_name(part), &made);
        tell(name, made.len());
    }
    tell(
        "InitializeRequest",
        open_generated_sessions(schema, &mut maker, &echo, instances),
    );
    count
}

/// Makes calls during which the server sends notifications to subscribers.
fn make_notification_trips(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    name: &str,
    fixed: &[(&str, &str)],
    instances: usize,
) -> Vec<RoundTrip> {
    let plain = &TRIP_SPECS[0];
    (0..instances)
        .map(|at| {
            let mut trip = plain.make_trip(schema, maker, at);
            trip.messages = vec![round_trip::make_notification(
                schema,
                maker,
                name,
                fixed,
                MessageHandling::OnSessionStream,
            )];
            trip
        })
        .collect()
}

/// Opens sessions and returns the count.
fn open_generated_sessions(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    echo: &EchoGateway,
    instances: usize,
) -> usize {
    let request = schema.find_type("InitializeRequest").unwrap();
    let revision = format!("\"{}\"", schema.revision);
    for at in 0..instances {
        let params = &request["properties"]["params"];
        let params = maker.make_instance(params, &[("protocolVersion", &revision)]);
        let result = echo.open_and_end_session(&params);
        let answered: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(answered["protocolVersion"], schema.revision, "{params}");
        assert_eq!(answered["serverInfo"]["name"], "echo", "{result}");
        if at < round_trip::CHECKED {
            assert_part_valid(
                schema,
                schema.find_type("InitializeResult").unwrap(),
                &result,
            );
        }
    }
    instances
}

/// Makes the items of a list: the called item, and many more.
fn make_list_items(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    list: &ListSpec,
    instances: usize,
) -> Vec<String> {
    let ListSpec {
        item,
        key,
        first,
        others,
        ..
    } = list;
    let part = schema.find_type(item).unwrap();
    (0..instances)
        .map(|at| {
            let own = match at {
                0 => format!("\"{first}\""),
                _ => format!("\"{}\"", others.replace('@', &at.to_string())),
            };
            let text = maker.make_instance(part, &[(key, &own)]);
            if at < round_trip::CHECKED {
                assert_part_valid(schema, part, &text);
            }
            text
        })
        .collect()
}
