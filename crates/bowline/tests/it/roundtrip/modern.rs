//! The same for the modern era: requests that say what they need, over a pipe and over HTTP.

mod client;
mod peer;
mod rounds;

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
    let mut count = 0;
    let mut tell = |what: &str, many: usize| {
        eprintln!("{REVISION} {what}: {many}");
        count += many;
    };
    for (list, offered) in LISTS.iter().zip(&offers) {
        tell(list.item, peers.lists(list, offered));
    }
    for row in ROWS.iter().filter(|row| is_spoken(row, &schema)) {
        for road in roads(row) {
            let trips: Vec<_> = (0..instances)
                .map(|at| row.trip(&schema, &mut maker, at))
                .collect();
            peers.travel(*road, &trips);
            tell(&format!("{} ({road:?})", row.name()), trips.len());
        }
    }
    for (name, code) in ERRORS {
        for road in [Road::Server, Road::Own] {
            let trips: Vec<_> = (0..instances)
                .map(|at| failing(&schema, &mut maker, (name, code), at))
                .collect();
            peers.travel(road, &trips);
            tell(&format!("{name} ({road:?})"), trips.len());
        }
    }
    for (request, result) in [
        ("DiscoverRequest", "DiscoverResult"),
        ("ListToolsRequest", "ListToolsResult"),
        ("ListPromptsRequest", "ListPromptsResult"),
        ("ListResourcesRequest", "ListResourcesResult"),
        (
            "ListResourceTemplatesRequest",
            "ListResourceTemplatesResult",
        ),
    ] {
        let asked: Vec<_> = (0..instances)
            .map(|_| trip::asked(&schema, &mut maker, request, "", &[("cursor", "")]))
            .collect();
        peers.own(&asked, |answer| {
            schema.check(schema.get(result).unwrap(), answer)
        });
        tell(request, asked.len());
    }
    let unheard = schema.get("CancelledNotification").unwrap();
    let params = &unheard["properties"]["params"];
    let said: Vec<_> = (0..instances).map(|_| maker.make(params, &[])).collect();
    peers.unheard(&trip::method(unheard), &said);
    tell("CancelledNotification", said.len());
    rounds::go(&schema, &mut maker, &peers, instances, &mut tell);
    eprintln!("{count} instances");
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
