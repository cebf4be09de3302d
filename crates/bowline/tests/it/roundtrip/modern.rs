//! The same for the modern era: requests that say what they need, over a pipe and over HTTP.

mod client;
mod peer;
mod rounds;

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::{Value, json};

use super::make::Maker;
use super::rows::{LISTS, ROWS};
use super::trip::{self, Kind, Road, Row, Trip};
use super::{INSTANCES, SEED, Schema, number, offer};
use crate::peers::left_out;
use peer::Peers;

pub(super) const REVISION: &str = "2026-07-28";

/// Members that only a further round has.
pub(super) const ROUND: [(&str, &str); 2] = [("inputResponses", ""), ("requestState", "")];

/// Errors that the schema names, and their numbers. One of them is told to the link, which asks
/// for the tools once more and sends the request again.
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
fn generated_messages_of_the_modern_schema_go_through_unchanged() {
    let Some(schema) = Schema::load(REVISION) else {
        let test = "generated_messages_of_the_modern_schema_go_through_unchanged";
        return left_out(test, "no shared/mcp-schema beside the workspace");
    };
    let instances = number("BOWLINE_ROUNDTRIP").map_or(INSTANCES, |n| n.try_into().unwrap());
    let seed = number("BOWLINE_SEED").unwrap_or(SEED);
    eprintln!("BOWLINE_SEED={seed}");
    let mut maker = Maker::new(&schema.all, seed);
    let offers: Vec<_> = LISTS
        .iter()
        .map(|list| offer(&schema, &mut maker, list, instances))
        .collect();
    let given = LISTS.iter().zip(&offers).map(|(list, all)| {
        let (member, all) = (list.member, all.join(","));
        let hints = r#""resultType":"complete","ttlMs":60000,"cacheScope":"public""#;
        (
            list.method.to_owned(),
            json!(format!("{{\"{member}\":[{all}],{hints}}}")),
        )
    });
    let peers = Peers::up(&Value::Object(given.collect()));
    let mut all = All::default();
    for (list, offered) in LISTS.iter().zip(&offers) {
        all.each(list.item, || peers.lists(list, offered));
    }
    for row in ROWS.iter().filter(|row| is_spoken(row, &schema)) {
        for road in roads(row) {
            all.each(&format!("{} ({road:?})", row.name()), || {
                let trip = |at| row.trip(&schema, &mut maker, at);
                peers.travel(*road, &(0..instances).map(trip).collect::<Vec<_>>())
            });
        }
    }
    for (name, code) in ERRORS {
        for road in [Road::Server, Road::Own] {
            all.each(&format!("{name} ({road:?})"), || {
                let trip = |at| failing(&schema, &mut maker, (name, code), at);
                peers.travel(road, &(0..instances).map(trip).collect::<Vec<_>>())
            });
        }
    }
    for (request, result) in ANSWERED {
        all.each(request, || {
            let ask = |_| trip::asked(&schema, &mut maker, request, "", &[("cursor", "")]);
            let asked: Vec<_> = (0..instances).map(ask).collect();
            let part = schema.get(result).unwrap();
            peers.own(&asked, |answer| schema.check(part, answer))
        });
    }
    all.each("CancelledNotification", || {
        let part = schema.get("CancelledNotification").unwrap();
        let params = &part["properties"]["params"];
        let said: Vec<_> = (0..instances).map(|_| maker.make(params, &[])).collect();
        peers.unheard(&trip::method(part), &said)
    });
    for request in rounds::ASKED {
        for road in [Road::Server, Road::Own] {
            all.each(
                &format!("InputRequiredResult of {request} ({road:?})"),
                || rounds::go(&schema, &mut maker, &peers, (request, road), instances),
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

/// Requests that the gateway answers itself, and the types of their results.
const ANSWERED: [(&str, &str); 5] = [
    ("DiscoverRequest", "DiscoverResult"),
    ("ListToolsRequest", "ListToolsResult"),
    ("ListPromptsRequest", "ListPromptsResult"),
    ("ListResourcesRequest", "ListResourcesResult"),
    (
        "ListResourceTemplatesRequest",
        "ListResourceTemplatesResult",
    ),
];

/// How many went through, and which types did not.
#[derive(Debug, Default)]
struct All {
    count: usize,
    failed: Vec<String>,
}

impl All {
    /// Sends one type, and goes on with the next whatever became of it: one fault must not hide
    /// the others.
    fn each(&mut self, what: &str, send: impl FnOnce() -> usize) {
        match catch_unwind(AssertUnwindSafe(send)) {
            Ok(many) => {
                eprintln!("{REVISION} {what}: {many}");
                self.count += many;
            }
            Err(_) => self.failed.push(what.to_owned()),
        }
    }
}

/// Whether a row is of this era: what a server says or asks outside answers is another matter.
fn is_spoken(row: &Row, schema: &Schema) -> bool {
    let plain = matches!(row.kind, Kind::Result(_) | Kind::Error | Kind::Told(_));
    plain && row.is_in(schema)
}

/// The roads of a row: a server on a pipe, one over HTTP, or all.
const fn roads(row: &Row) -> &'static [Road] {
    match row.road {
        Road::All => &[Road::All],
        Road::Server | Road::Own => &[Road::Server, Road::Own],
    }
}

/// Makes a call that is answered with an error of one type.
fn failing(schema: &Schema, maker: &mut Maker<'_>, (name, code): (&str, &str), at: usize) -> Trip {
    let mut trip = ROWS[0].trip(schema, maker, at);
    let part = schema.get(name).unwrap();
    let part = part["properties"].get("error").unwrap_or(part).clone();
    let own = part.pointer("/allOf/1/properties/data");
    let data = own.map(|data| maker.make(data, &[]));
    let mut fixed = vec![("code", code)];
    if let Some(data) = &data {
        fixed.push(("data", data));
    }
    trip.member = "error";
    trip.answer = maker.make(&part, &fixed);
    trip
}
