//! One round trip: the sent and the expected messages at both ends of the gateway.

use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::instances::InstanceGenerator;
use super::modern::ROUND;
use super::{assert_part_valid, complete_members};

/// Number of instances of each type that are validated against the schema, as a check of the
/// generator.
pub(super) const CHECKED: usize = 5;

/// Placeholder of a progress token, which the gateway replaces on the server's side.
pub(super) const TOKEN: &str = "@TOKEN@";

/// Placeholder of the requested name or URI.
pub(super) const NAME: &str = "@NAME@";

/// A kind of request and the expected handling.
pub(super) struct TripSpec {
    pub(super) request: &'static str,
    /// Params members that the server must know, or must not see.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    pub(super) kind: TripKind,
    pub(super) endpoint: TripEndpoint,
    /// The quoted name, in the client's and the server's form.
    pub(super) name: (&'static str, &'static str),
}

/// The endpoint of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TripEndpoint {
    /// A server shared by all clients.
    Server,
    /// A server with a process for each session.
    PerSession,
    /// All servers.
    All,
}

pub(super) enum TripKind {
    /// The server responds with a result of this type.
    Result(&'static str),
    /// The server responds with a task.
    Task,
    /// The server responds with an error.
    Error,
    /// The server sends a notification before the response.
    Notified(&'static str),
    /// The server sends a notification that the client does not receive.
    Suppressed(&'static str),
    /// The server sends a request before the response, and the client answers with this type.
    Answered(&'static str, &'static str),
    /// The server sends a request before the response, and the client answers with an error.
    AnsweredWithError(&'static str),
    /// The server sends a request before the response, and cancels it.
    Cancelled(&'static str),
    /// The server elicits a URL, and reports the completion.
    UrlCompleted,
}

/// A request with all messages.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    pub(super) method: String,
    /// The client's params, with placeholders for progress token and name.
    pub(super) params: String,
    /// The client's progress token, if any.
    pub(super) token: String,
    /// The client's and the server's form of the name.
    pub(super) name: (String, String),
    /// Unknown members of the outermost object, with a trailing comma.
    pub(super) extra: String,
    /// Messages of the server before the response.
    pub(super) messages: Vec<TripMessage>,
    /// `result` or `error`, and the content.
    pub(super) member: &'static str,
    pub(super) response: String,
}

/// A message of the server.
#[derive(Debug)]
pub(super) struct TripMessage {
    pub(super) method: String,
    pub(super) params: String,
    pub(super) handling: MessageHandling,
}

/// The handling of a server message.
#[derive(Debug)]
pub(super) enum MessageHandling {
    /// Received by the client on the call's stream.
    OnCallStream,
    /// Received by the client on the session's stream.
    OnSessionStream,
    /// Not received by the client.
    Suppressed,
    /// The client answers with this member and content.
    Answered(&'static str, String),
    /// Cancelled by the server with the given params.
    Cancelled(String),
}

impl TripSpec {
    pub(super) fn case_name(&self) -> String {
        let road = match self.endpoint {
            TripEndpoint::Server | TripEndpoint::PerSession => "",
            TripEndpoint::All => " at all servers",
        };
        let request = self.request;
        match &self.kind {
            TripKind::Result(name) => format!("{request} and {name}{road}"),
            TripKind::Task => format!("{request} as a task and CreateTaskResult"),
            TripKind::Error => format!("{request} and an error{road}"),
            TripKind::Notified(name) | TripKind::Answered(name, _) => {
                format!("{name} in {request}")
            }
            TripKind::Suppressed(name) => format!("{name} in {request}, not passed on"),
            TripKind::AnsweredWithError(name) => {
                format!("{name} in {request}, answered with an error")
            }
            TripKind::Cancelled(name) => format!("{name} in {request} and CancelledNotification"),
            TripKind::UrlCompleted => format!("ElicitationCompleteNotification in {request}"),
        }
    }

    /// Whether this revision has the types.
    pub(super) fn is_in(&self, schema: &McpSchema) -> bool {
        let other = match &self.kind {
            TripKind::Result(name)
            | TripKind::Notified(name)
            | TripKind::Suppressed(name)
            | TripKind::Answered(name, _)
            | TripKind::AnsweredWithError(name)
            | TripKind::Cancelled(name) => name,
            TripKind::Task => "CreateTaskResult",
            TripKind::UrlCompleted => "ElicitationCompleteNotification",
            TripKind::Error => self.request,
        };
        schema.find_type(self.request).is_some() && schema.find_type(other).is_some()
    }

    pub(super) fn make_trip(
        &self,
        schema: &McpSchema,
        maker: &mut InstanceGenerator<'_>,
        at: usize,
    ) -> RoundTrip {
        let is_told = matches!(self.kind, TripKind::Notified(_));
        let token = if is_told || at.is_multiple_of(2) {
            maker.pick_from(&[
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
        let (method, params) = make_request_params(schema, maker, self.request, token, self.fixed);
        let extra = if at % 4 == 3 {
            let unknown = maker.make_instance(&json!({"type": "object"}), &[]);
            format!("\"x-extra\":{unknown},")
        } else {
            String::new()
        };
        let mut trip = RoundTrip {
            method,
            params,
            token: token.to_owned(),
            name: (self.name.0.to_owned(), self.name.1.to_owned()),
            extra,
            member: "result",
            response: match schema.is_modern() {
                true => r#"{"content":[],"resultType":"complete"}"#.to_owned(),
                false => r#"{"content":[]}"#.to_owned(),
            },
            ..RoundTrip::default()
        };
        let part = |name: &str| schema.find_type(name).unwrap();
        match &self.kind {
            TripKind::Result(name) => {
                trip.response = maker.make_instance(part(name), complete_members(schema))
            }
            TripKind::Task => {
                trip.response = make_task_response(schema, maker, &format!("task-{at}"))
            }
            TripKind::Error => {
                trip.member = "error";
                trip.response = maker.make_instance(&error_schema(schema), &[]);
            }
            TripKind::Notified(_)
            | TripKind::Suppressed(_)
            | TripKind::Answered(..)
            | TripKind::AnsweredWithError(_)
            | TripKind::Cancelled(_)
            | TripKind::UrlCompleted => trip.messages = self.make_messages(schema, maker, at),
        }
        if at < CHECKED {
            self.assert_valid(schema, &trip);
        }
        trip
    }

    /// Makes the server's messages before the response.
    fn make_messages(
        &self,
        schema: &McpSchema,
        maker: &mut InstanceGenerator<'_>,
        at: usize,
    ) -> Vec<TripMessage> {
        let part = |name: &str| schema.find_type(name).unwrap();
        let ask = |maker: &mut InstanceGenerator<'_>, name: &str, way: MessageHandling| {
            let (method, params) = make_request_params(schema, maker, name, "", &[("task", "")]);
            TripMessage {
                method,
                params,
                handling: way,
            }
        };
        match &self.kind {
            TripKind::Result(_) | TripKind::Task | TripKind::Error => Vec::new(),
            TripKind::Notified(name) => vec![make_notification(
                schema,
                maker,
                name,
                &[],
                MessageHandling::OnCallStream,
            )],
            TripKind::Suppressed(name) => vec![make_notification(
                schema,
                maker,
                name,
                &[],
                MessageHandling::Suppressed,
            )],
            TripKind::Answered(name, answer) => {
                let answer = maker.make_instance(part(answer), &[]);
                vec![ask(
                    maker,
                    name,
                    MessageHandling::Answered("result", answer),
                )]
            }
            TripKind::AnsweredWithError(name) => {
                let answer = maker.make_instance(&error_schema(schema), &[]);
                vec![ask(maker, name, MessageHandling::Answered("error", answer))]
            }
            TripKind::Cancelled(name) => {
                let id = format!("\"ask-{at}\"");
                let cancelled = &part("CancelledNotification")["properties"]["params"];
                let cancelled = maker.make_instance(cancelled, &[("requestId", &id)]);
                vec![ask(maker, name, MessageHandling::Cancelled(cancelled))]
            }
            TripKind::UrlCompleted => {
                let id = format!("\"address {at}\"");
                let fixed = [("elicitationId", id.as_str()), ("task", "")];
                let params = maker.make_instance(part("ElicitRequestURLParams"), &fixed);
                let answer = maker.make_instance(part("ElicitResult"), &[]);
                let sent = TripMessage {
                    method: method_name(part("ElicitRequest")),
                    params,
                    handling: MessageHandling::Answered("result", answer),
                };
                let name = "ElicitationCompleteNotification";
                let fixed = [("elicitationId", id.as_str())];
                vec![
                    sent,
                    make_notification(schema, maker, name, &fixed, MessageHandling::OnCallStream),
                ]
            }
        }
    }

    /// Validates a trip against the schema.
    fn assert_valid(&self, schema: &McpSchema, trip: &RoundTrip) {
        let part = |name: &str| schema.find_type(name).unwrap();
        let params = &part(self.request)["properties"]["params"];
        assert_part_valid(schema, params, &trip.client_params());
        match &self.kind {
            TripKind::Result(name) => assert_part_valid(schema, part(name), &trip.response),
            TripKind::Task => assert_part_valid(schema, part("CreateTaskResult"), &trip.response),
            TripKind::Error => assert_part_valid(schema, &error_schema(schema), &trip.response),
            TripKind::Notified(name)
            | TripKind::Suppressed(name)
            | TripKind::Answered(name, _)
            | TripKind::AnsweredWithError(name)
            | TripKind::Cancelled(name) => {
                let params = &part(name)["properties"]["params"];
                for event in &trip.messages {
                    assert_part_valid(schema, params, &event.params.replace(TOKEN, &trip.token));
                }
            }
            TripKind::UrlCompleted => {
                let name = "ElicitationCompleteNotification";
                let params = &part(name)["properties"]["params"];
                assert_part_valid(schema, params, &trip.messages[1].params);
            }
        }
    }
}

impl RoundTrip {
    /// The client's params.
    pub(super) fn client_params(&self) -> String {
        let params = self.params.replace(TOKEN, &self.token);
        params.replace(NAME, &self.name.0)
    }
}

/// Makes the params of a request, with a placeholder for the progress token.
pub(super) fn make_request_params(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    name: &str,
    token: &str,
    fixed: &[(&str, &str)],
) -> (String, String) {
    let part = schema.find_type(name).unwrap();
    let token = if token.is_empty() { "" } else { TOKEN };
    let meta = match schema.find_type("RequestMetaObject") {
        Some(part) => {
            let version = format!("\"{}\"", schema.revision);
            // The lowest log level, so every log line is delivered.
            let fixed = [
                ("progressToken", token),
                ("io.modelcontextprotocol/protocolVersion", &version),
                ("io.modelcontextprotocol/logLevel", "\"debug\""),
            ];
            maker.make_instance(part, &fixed)
        }
        None => maker.make_instance(&json!({"type": "object"}), &[("progressToken", token)]),
    };
    let mut fixed = fixed.to_vec();
    fixed.push(("_meta", &meta));
    if schema.is_modern() {
        fixed.extend(ROUND);
    }
    let params = maker.make_instance(&part["properties"]["params"], &fixed);
    (method_name(part), params)
}

/// Makes a task-creating response.
pub(super) fn make_task_response(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    id: &str,
) -> String {
    let id = format!("\"{id}\"");
    let task = maker.make_instance(schema.find_type("Task").unwrap(), &[("taskId", &id)]);
    let part = schema.find_type("CreateTaskResult").unwrap();
    maker.make_instance(part, &[("task", &task)])
}

/// Makes a notification; a progress notification has the token of its request.
pub(super) fn make_notification(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    name: &str,
    fixed: &[(&str, &str)],
    way: MessageHandling,
) -> TripMessage {
    let part = schema.find_type(name).unwrap();
    let mut fixed = fixed.to_vec();
    if name == "ProgressNotification" {
        fixed.push(("progressToken", TOKEN));
    }
    let params = maker.make_instance(&part["properties"]["params"], &fixed);
    TripMessage {
        method: method_name(part),
        params,
        handling: way,
    }
}

pub(super) fn method_name(part: &Value) -> String {
    let method = &part["properties"]["method"]["const"];
    method.as_str().unwrap().to_owned()
}

/// The schema of an error object.
fn error_schema(schema: &McpSchema) -> Value {
    let names = ["JSONRPCErrorResponse", "JSONRPCError"];
    let part = names
        .iter()
        .find_map(|name| schema.find_type(name))
        .unwrap();
    part["properties"]["error"].clone()
}
