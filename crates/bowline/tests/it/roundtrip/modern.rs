//! The same for the modern era: self-contained requests, over a pipe and over HTTP.

mod echo_servers;
mod input_rounds;
mod modern_byte_client;

use std::panic::{AssertUnwindSafe, catch_unwind};

use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::instances::InstanceGenerator;
use super::round_trip::{self, RoundTrip, TripEndpoint, TripKind, TripSpec};
use super::trip_specs::{LISTS, TRIP_SPECS};
use super::{INSTANCES, SEED, assert_part_valid, env_number, make_list_items};
use echo_servers::EchoServers;

pub(super) const REVISION: &str = "2026-07-28";

/// Members of further rounds.
pub(super) const ROUND: [(&str, &str); 2] = [("inputResponses", ""), ("requestState", "")];

/// Errors named by the schema, with codes. -32020 is left out: the link lists the tools again and
/// resends the request.
const ERRORS: &[(&str, &str)] = &[
    ("ParseError", "-32700"),
    ("InvalidRequestError", "-32600"),
    ("MethodNotFoundError", "-32601"),
    ("InvalidParamsError", "-32602"),
    ("InternalError", "-32603"),
    ("MissingRequiredClientCapabilityError", "-32021"),
    ("UnsupportedProtocolVersionError", "-32022"),
];

#[test]
fn generated_modern_messages_pass_unchanged() {
    let test = "generated_modern_messages_pass_unchanged";
    let Some(schema) = McpSchema::load(REVISION, test) else {
        return;
    };
    let instances = env_number("BOWLINE_ROUNDTRIP").map_or(INSTANCES, |n| n.try_into().unwrap());
    let seed = env_number("BOWLINE_SEED").unwrap_or(SEED);
    eprintln!("BOWLINE_SEED={seed}");
    let mut maker = InstanceGenerator::new(&schema.document, seed);
    let offers: Vec<_> = LISTS
        .iter()
        .map(|list| make_list_items(&schema, &mut maker, list, instances))
        .collect();
    let peers = start_echo_servers(&offers);
    let mut all = TripSummary::default();
    for (list, offered) in LISTS.iter().zip(&offers) {
        all.run_type(list.item, || peers.assert_lists_equal(list, offered));
    }
    for row in TRIP_SPECS.iter().filter(|row| is_modern_row(row, &schema)) {
        for road in trip_endpoints(row) {
            all.run_type(&format!("{} ({road:?})", row.case_name()), || {
                let trip = |at| row.make_trip(&schema, &mut maker, at);
                peers.assert_trips(*road, &(0..instances).map(trip).collect::<Vec<_>>())
            });
        }
    }
    for (name, code) in ERRORS {
        for road in [TripEndpoint::Server, TripEndpoint::PerSession] {
            all.run_type(&format!("{name} ({road:?})"), || {
                let trip = |at| make_error_trip(&schema, &mut maker, name, code, at);
                peers.assert_trips(road, &(0..instances).map(trip).collect::<Vec<_>>())
            });
        }
    }
    for (request, result) in GATEWAY_RESULTS {
        all.run_type(request, || {
            let ask = |_| {
                round_trip::make_request_params(&schema, &mut maker, request, "", &[("cursor", "")])
            };
            let asked: Vec<_> = (0..instances).map(ask).collect();
            let part = schema.find_type(result).unwrap();
            peers.assert_gateway_results(&asked, |answer| assert_part_valid(&schema, part, answer))
        });
    }
    all.run_type("CancelledNotification", || {
        let part = schema.find_type("CancelledNotification").unwrap();
        let params = &part["properties"]["params"];
        let said: Vec<_> = (0..instances)
            .map(|_| maker.make_instance(params, &[]))
            .collect();
        peers.assert_unheard(&round_trip::method_name(part), &said)
    });
    for request in input_rounds::INPUT_REQUIRED {
        for road in [TripEndpoint::Server, TripEndpoint::PerSession] {
            all.run_type(
                &format!("InputRequiredResult of {request} ({road:?})"),
                || input_rounds::run_rounds(&schema, &mut maker, &peers, request, road, instances),
            );
        }
    }
    eprintln!("{} instances", all.count);
    assert!(
        all.failed.is_empty(),
        "changed on the way: {:#?}",
        all.failed
    );
}

/// Starts the servers with these items, in the order of the lists.
fn start_echo_servers(offers: &[Vec<String>]) -> EchoServers {
    let given = LISTS.iter().zip(offers).map(|(list, all)| {
        let (member, all) = (list.member, all.join(","));
        let hints = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public""#;
        (
            list.method.to_owned(),
            json!(format!("{{\"{member}\":[{all}],{hints}}}")),
        )
    });
    EchoServers::start(&Value::Object(given.collect()))
}

/// Requests for the gateway itself, with result types.
const GATEWAY_RESULTS: [(&str, &str); 5] = [
    ("DiscoverRequest", "DiscoverResult"),
    ("ListToolsRequest", "ListToolsResult"),
    ("ListPromptsRequest", "ListPromptsResult"),
    ("ListResourcesRequest", "ListResourcesResult"),
    (
        "ListResourceTemplatesRequest",
        "ListResourceTemplatesResult",
    ),
];

/// The number of passed messages, and the failed types.
#[derive(Debug, Default)]
struct TripSummary {
    count: usize,
    failed: Vec<String>,
}

impl TripSummary {
    /// Sends a type and continues after a failure, so a fault does not hide the next.
    fn run_type(&mut self, what: &str, send: impl FnOnce() -> usize) {
        match catch_unwind(AssertUnwindSafe(send)) {
            Ok(many) => {
                eprintln!("{REVISION} {what}: {many}");
                self.count += many;
            }
            Err(_) => self.failed.push(what.to_owned()),
        }
    }
}

/// Whether a row belongs to this era; server messages outside responses are tested elsewhere.
fn is_modern_row(row: &TripSpec, schema: &McpSchema) -> bool {
    let plain = matches!(
        row.kind,
        TripKind::Result(_) | TripKind::Error | TripKind::Notified(_)
    );
    plain && row.is_in(schema)
}

/// The endpoints of a row: a server on a pipe, a server over HTTP, or all.
const fn trip_endpoints(row: &TripSpec) -> &'static [TripEndpoint] {
    match row.endpoint {
        TripEndpoint::All => &[TripEndpoint::All],
        TripEndpoint::Server | TripEndpoint::PerSession => {
            &[TripEndpoint::Server, TripEndpoint::PerSession]
        }
    }
}

/// Makes a call that gets an error of one type.
fn make_error_trip(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    name: &str,
    code: &str,
    at: usize,
) -> RoundTrip {
    let mut trip = TRIP_SPECS[0].make_trip(schema, maker, at);
    let part = schema.find_type(name).unwrap();
    let part = part["properties"].get("error").unwrap_or(part).clone();
    let own = part.pointer("/allOf/1/properties/data");
    let data = own.map(|data| maker.make_instance(data, &[]));
    let mut fixed = vec![("code", code)];
    if let Some(data) = &data {
        fixed.push(("data", data));
    }
    trip.member = "error";
    trip.response = maker.make_instance(&part, &fixed);
    trip
}
