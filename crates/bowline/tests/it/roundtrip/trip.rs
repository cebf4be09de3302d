//! What is sent and what must arrive, on both ends of the gateway.

use serde_json::{Value, json};

use super::Schema;
use super::make::Maker;

/// Of each type so many are held against the schema, lest the maker makes something else.
pub(super) const CHECKED: usize = 5;

/// Stands for a progress token, which is the gateway's own on the server's side.
pub(super) const TOKEN: &str = "@TOKEN@";

/// A kind of request and what becomes of it.
pub(super) struct Row {
    pub(super) request: &'static str,
    /// Members of the params that the server must know, or must not see.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// The server answers with a result of this type.
    Result(&'static str),
    /// The server answers with an error.
    Error,
    /// The server tells something on the way.
    Told(&'static str),
    /// The server asks something on the way, and the client answers with this type.
    Asked(&'static str, &'static str),
}

/// One request with all that happens on its way.
#[derive(Debug, Default)]
pub(super) struct Trip {
    pub(super) method: String,
    /// The client's params; its progress token stands for itself.
    pub(super) params: String,
    /// The client's progress token, if it has one.
    pub(super) token: String,
    /// What the server sends before its answer.
    pub(super) on_the_way: Vec<Event>,
    /// `result` or `error`, and what is in it.
    pub(super) member: &'static str,
    pub(super) answer: String,
}

/// A message of the server, with the client's answer if it asks for one.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) method: String,
    pub(super) params: String,
    pub(super) answer: Option<String>,
}

impl Row {
    pub(super) fn name(&self) -> String {
        match &self.kind {
            Kind::Result(name) => format!("{} and {name}", self.request),
            Kind::Error => format!("{} and an error", self.request),
            Kind::Told(name) | Kind::Asked(name, _) => format!("{name} in {}", self.request),
        }
    }

    /// Whether this revision knows the types.
    pub(super) fn is_in(&self, schema: &Schema) -> bool {
        let other = match &self.kind {
            Kind::Result(name) | Kind::Told(name) | Kind::Asked(name, _) => name,
            Kind::Error => self.request,
        };
        schema.get(self.request).is_some() && schema.get(other).is_some()
    }

    pub(super) fn trip(&self, schema: &Schema, maker: &mut Maker<'_>, at: usize) -> Trip {
        let checked = at < CHECKED;
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
        let (method, params) = self.asked(schema, maker, self.request, token, self.fixed);
        let mut trip = Trip {
            method,
            params,
            token: token.to_owned(),
            member: "result",
            answer: "{}".to_owned(),
            ..Trip::default()
        };
        let part = |name: &str| schema.get(name).unwrap();
        match &self.kind {
            Kind::Result(name) => trip.answer = maker.make(part(name), &[]),
            Kind::Error => {
                trip.member = "error";
                trip.answer = maker.make(&error(schema), &[]);
            }
            Kind::Told(name) => {
                trip.answer = "{\"content\":[]}".to_owned();
                let (method, params) = told(schema, maker, name);
                trip.on_the_way.push(Event {
                    method,
                    params,
                    answer: None,
                });
            }
            Kind::Asked(name, answer) => {
                trip.answer = "{\"content\":[]}".to_owned();
                let (method, params) = self.asked(schema, maker, name, "", &[("task", "")]);
                let answer = Some(maker.make(part(answer), &[]));
                trip.on_the_way.push(Event {
                    method,
                    params,
                    answer,
                });
            }
        }
        if checked {
            self.hold(schema, &trip);
        }
        trip
    }

    /// Makes the params of a request, with a place for the progress token.
    fn asked(
        &self,
        schema: &Schema,
        maker: &mut Maker<'_>,
        name: &str,
        token: &str,
        fixed: &[(&str, &str)],
    ) -> (String, String) {
        let part = schema.get(name).unwrap();
        let token = if token.is_empty() { "" } else { TOKEN };
        let meta = maker.make(&json!({"type": "object"}), &[("progressToken", token)]);
        let mut fixed = fixed.to_vec();
        fixed.push(("_meta", &meta));
        let params = maker.make(&part["properties"]["params"], &fixed);
        (method(part), params)
    }

    /// Holds one trip against the schema.
    fn hold(&self, schema: &Schema, trip: &Trip) {
        let part = |name: &str| schema.get(name).unwrap();
        let params = &part(self.request)["properties"]["params"];
        schema.check(params, &trip.params.replace(TOKEN, &trip.token));
        match &self.kind {
            Kind::Result(name) => schema.check(part(name), &trip.answer),
            Kind::Error => schema.check(&error(schema), &trip.answer),
            Kind::Told(name) | Kind::Asked(name, _) => {
                let params = &part(name)["properties"]["params"];
                for event in &trip.on_the_way {
                    schema.check(params, &event.params.replace(TOKEN, &trip.token));
                }
            }
        }
    }
}

/// Makes the params of a notification; one of progress has the token of its request.
fn told(schema: &Schema, maker: &mut Maker<'_>, name: &str) -> (String, String) {
    let part = schema.get(name).unwrap();
    let fixed: &[_] = match name {
        "ProgressNotification" => &[("progressToken", TOKEN)],
        _ => &[],
    };
    let params = maker.make(&part["properties"]["params"], fixed);
    (method(part), params)
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
