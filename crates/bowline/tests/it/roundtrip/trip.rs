//! What is sent and what must arrive, on both ends of the gateway.

use serde_json::{Value, json};

use super::Schema;
use super::make::Maker;
use super::modern::ROUND;

/// Of each type so many are held against the schema, lest the maker makes something else.
pub(super) const CHECKED: usize = 5;

/// Stands for a progress token, which is the gateway's own on the server's side.
pub(super) const TOKEN: &str = "@TOKEN@";

/// Stands for the name or the URI of what is asked for.
pub(super) const NAME: &str = "@NAME@";

/// A kind of request and what becomes of it.
pub(super) struct Row {
    pub(super) request: &'static str,
    /// Members of the params that the server must know, or must not see.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    pub(super) kind: Kind,
    pub(super) road: Road,
    /// What stands for the name, with its quotes: as the client writes it, as the server reads it.
    pub(super) name: (&'static str, &'static str),
}

/// Where a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Road {
    /// At one server, which all clients share.
    Server,
    /// At one server of which each session has its own.
    Own,
    /// At all servers at once.
    All,
}

pub(super) enum Kind {
    /// The server answers with a result of this type.
    Result(&'static str),
    /// The server answers with a task.
    Task,
    /// The server answers with an error.
    Error,
    /// The server tells something on the way.
    Told(&'static str),
    /// The server tells something on the way that is not for the client.
    Swallowed(&'static str),
    /// The server asks something on the way, and the client answers with this type.
    Asked(&'static str, &'static str),
    /// The server asks something on the way, and the client answers with an error.
    Refused(&'static str),
    /// The server asks something on the way, and takes it back.
    Withdrawn(&'static str),
    /// The server sends the user to an address, and says when that is done.
    Completed,
}

/// One request with all that happens on its way.
#[derive(Debug, Default)]
pub(super) struct Trip {
    pub(super) method: String,
    /// The client's params; its progress token and the name stand for themselves.
    pub(super) params: String,
    /// The client's progress token, if it has one.
    pub(super) token: String,
    /// The name as the client writes it, and as the server reads it.
    pub(super) name: (String, String),
    /// Members of the outermost object that nobody knows, with a comma at the end.
    pub(super) extra: String,
    /// What the server sends before its answer.
    pub(super) on_the_way: Vec<Event>,
    /// `result` or `error`, and what is in it.
    pub(super) member: &'static str,
    pub(super) answer: String,
}

/// A message of the server.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) method: String,
    pub(super) params: String,
    pub(super) way: Way,
}

/// What becomes of a message of the server.
#[derive(Debug)]
pub(super) enum Way {
    /// The client reads it on the stream of its call.
    Told,
    /// The client reads it on the stream of its session.
    Aside,
    /// The client does not read it.
    Swallowed,
    /// The client answers with this member and what is in it.
    Asked(&'static str, String),
    /// The server takes it back with these params.
    Withdrawn(String),
}

impl Row {
    pub(super) fn name(&self) -> String {
        let road = match self.road {
            Road::Server | Road::Own => "",
            Road::All => " at all servers",
        };
        let request = self.request;
        match &self.kind {
            Kind::Result(name) => format!("{request} and {name}{road}"),
            Kind::Task => format!("{request} as a task and CreateTaskResult"),
            Kind::Error => format!("{request} and an error{road}"),
            Kind::Told(name) | Kind::Asked(name, _) => format!("{name} in {request}"),
            Kind::Swallowed(name) => format!("{name} in {request}, not passed on"),
            Kind::Refused(name) => format!("{name} in {request}, answered with an error"),
            Kind::Withdrawn(name) => format!("{name} in {request} and CancelledNotification"),
            Kind::Completed => format!("ElicitationCompleteNotification in {request}"),
        }
    }

    /// Whether this revision knows the types.
    pub(super) fn is_in(&self, schema: &Schema) -> bool {
        let other = match &self.kind {
            Kind::Result(name)
            | Kind::Told(name)
            | Kind::Swallowed(name)
            | Kind::Asked(name, _)
            | Kind::Refused(name)
            | Kind::Withdrawn(name) => name,
            Kind::Task => "CreateTaskResult",
            Kind::Completed => "ElicitationCompleteNotification",
            Kind::Error => self.request,
        };
        schema.get(self.request).is_some() && schema.get(other).is_some()
    }

    pub(super) fn trip(&self, schema: &Schema, maker: &mut Maker<'_>, at: usize) -> Trip {
        let is_told = matches!(self.kind, Kind::Told(_));
        let token = if is_told || at.is_multiple_of(2) {
            maker.pick(&[
                "\"a\"",
                "\"\\u0061 \\\"é\"",
                "17",
                "0",
                "\"17\"",
                "9007199254740993",
            ])
        } else {
            ""
        };
        let (method, params) = asked(schema, maker, self.request, token, self.fixed);
        let extra = if at % 4 == 3 {
            let unknown = maker.make(&json!({"type": "object"}), &[]);
            format!("\"x-extra\":{unknown},")
        } else {
            String::new()
        };
        let mut trip = Trip {
            method,
            params,
            token: token.to_owned(),
            name: (self.name.0.to_owned(), self.name.1.to_owned()),
            extra,
            member: "result",
            answer: match schema.is_modern() {
                true => r#"{"content":[],"resultType":"complete"}"#.to_owned(),
                false => r#"{"content":[]}"#.to_owned(),
            },
            ..Trip::default()
        };
        let part = |name: &str| schema.get(name).unwrap();
        match &self.kind {
            Kind::Result(name) => trip.answer = maker.make(part(name), schema.complete()),
            Kind::Task => trip.answer = made(schema, maker, &format!("task-{at}")),
            Kind::Error => {
                trip.member = "error";
                trip.answer = maker.make(&error(schema), &[]);
            }
            Kind::Told(_)
            | Kind::Swallowed(_)
            | Kind::Asked(..)
            | Kind::Refused(_)
            | Kind::Withdrawn(_)
            | Kind::Completed => trip.on_the_way = self.events(schema, maker, at),
        }
        if at < CHECKED {
            self.hold(schema, &trip);
        }
        trip
    }

    /// Makes what the server sends before its answer.
    fn events(&self, schema: &Schema, maker: &mut Maker<'_>, at: usize) -> Vec<Event> {
        let part = |name: &str| schema.get(name).unwrap();
        let ask = |maker: &mut Maker<'_>, name: &str, way: Way| {
            let (method, params) = asked(schema, maker, name, "", &[("task", "")]);
            Event {
                method,
                params,
                way,
            }
        };
        match &self.kind {
            Kind::Result(_) | Kind::Task | Kind::Error => Vec::new(),
            Kind::Told(name) => vec![told(schema, maker, name, &[], Way::Told)],
            Kind::Swallowed(name) => vec![told(schema, maker, name, &[], Way::Swallowed)],
            Kind::Asked(name, answer) => {
                let answer = maker.make(part(answer), &[]);
                vec![ask(maker, name, Way::Asked("result", answer))]
            }
            Kind::Refused(name) => {
                let answer = maker.make(&error(schema), &[]);
                vec![ask(maker, name, Way::Asked("error", answer))]
            }
            Kind::Withdrawn(name) => {
                let id = format!("\"ask-{at}\"");
                let cancelled = &part("CancelledNotification")["properties"]["params"];
                let cancelled = maker.make(cancelled, &[("requestId", &id)]);
                vec![ask(maker, name, Way::Withdrawn(cancelled))]
            }
            Kind::Completed => {
                let id = format!("\"address {at}\"");
                let fixed = [("elicitationId", id.as_str()), ("task", "")];
                let params = maker.make(part("ElicitRequestURLParams"), &fixed);
                let answer = maker.make(part("ElicitResult"), &[]);
                let sent = Event {
                    method: method(part("ElicitRequest")),
                    params,
                    way: Way::Asked("result", answer),
                };
                let name = "ElicitationCompleteNotification";
                let fixed = [("elicitationId", id.as_str())];
                vec![sent, told(schema, maker, name, &fixed, Way::Told)]
            }
        }
    }

    /// Holds one trip against the schema.
    fn hold(&self, schema: &Schema, trip: &Trip) {
        let part = |name: &str| schema.get(name).unwrap();
        let params = &part(self.request)["properties"]["params"];
        schema.check(params, &trip.sent());
        match &self.kind {
            Kind::Result(name) => schema.check(part(name), &trip.answer),
            Kind::Task => schema.check(part("CreateTaskResult"), &trip.answer),
            Kind::Error => schema.check(&error(schema), &trip.answer),
            Kind::Told(name)
            | Kind::Swallowed(name)
            | Kind::Asked(name, _)
            | Kind::Refused(name)
            | Kind::Withdrawn(name) => {
                let params = &part(name)["properties"]["params"];
                for event in &trip.on_the_way {
                    schema.check(params, &event.params.replace(TOKEN, &trip.token));
                }
            }
            Kind::Completed => {
                let name = "ElicitationCompleteNotification";
                let params = &part(name)["properties"]["params"];
                schema.check(params, &trip.on_the_way[1].params);
            }
        }
    }
}

impl Trip {
    /// The params as the client sends them.
    pub(super) fn sent(&self) -> String {
        let params = self.params.replace(TOKEN, &self.token);
        params.replace(NAME, &self.name.0)
    }
}

/// Makes the params of a request, with a place for the progress token.
pub(super) fn asked(
    schema: &Schema,
    maker: &mut Maker<'_>,
    name: &str,
    token: &str,
    fixed: &[(&str, &str)],
) -> (String, String) {
    let part = schema.get(name).unwrap();
    let token = if token.is_empty() { "" } else { TOKEN };
    let meta = match schema.get("RequestMetaObject") {
        Some(part) => {
            let version = format!("\"{}\"", schema.revision);
            // Whoever wants to hear everything, hears everything.
            let fixed = [
                ("progressToken", token),
                ("io.modelcontextprotocol/protocolVersion", &version),
                ("io.modelcontextprotocol/logLevel", "\"debug\""),
            ];
            maker.make(part, &fixed)
        }
        None => maker.make(&json!({"type": "object"}), &[("progressToken", token)]),
    };
    let mut fixed = fixed.to_vec();
    fixed.push(("_meta", &meta));
    if schema.is_modern() {
        fixed.extend(ROUND);
    }
    let params = maker.make(&part["properties"]["params"], &fixed);
    (method(part), params)
}

/// Makes the answer of a server that made a task.
pub(super) fn made(schema: &Schema, maker: &mut Maker<'_>, id: &str) -> String {
    let id = format!("\"{id}\"");
    let task = maker.make(schema.get("Task").unwrap(), &[("taskId", &id)]);
    let part = schema.get("CreateTaskResult").unwrap();
    maker.make(part, &[("task", &task)])
}

/// Makes a notification; one of progress has the token of its request.
pub(super) fn told(
    schema: &Schema,
    maker: &mut Maker<'_>,
    name: &str,
    fixed: &[(&str, &str)],
    way: Way,
) -> Event {
    let part = schema.get(name).unwrap();
    let mut fixed = fixed.to_vec();
    if name == "ProgressNotification" {
        fixed.push(("progressToken", TOKEN));
    }
    let params = maker.make(&part["properties"]["params"], &fixed);
    Event {
        method: method(part),
        params,
        way,
    }
}

pub(super) fn method(part: &Value) -> String {
    let method = &part["properties"]["method"]["const"];
    method.as_str().unwrap().to_owned()
}

/// The schema of an error object.
fn error(schema: &Schema) -> Value {
    let names = ["JSONRPCErrorResponse", "JSONRPCError"];
    let part = names.iter().find_map(|name| schema.get(name)).unwrap();
    part["properties"]["error"].clone()
}
