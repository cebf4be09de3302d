//! The forwarded message types, and the types handled by the gateway.

use super::round_trip::{NAME, TripEndpoint, TripKind, TripSpec};

/// Members with given instead of generated values; an empty text omits the member.
type FixedMembers = &'static [(&'static str, &'static str)];

/// The params of a call of the single tool; a task call has another response type.
const TOOL: FixedMembers = &[("name", NAME), ("task", "")];
const AS_TASK: FixedMembers = &[("name", NAME), ("task", r#"{ "ttl" : 60000, "x-y":1.0}"#)];
const PROMPT: FixedMembers = &[("name", NAME)];
const RESOURCE: FixedMembers = &[("uri", NAME)];
const REFERENCE: FixedMembers = &[("ref", r#"{"type":"ref/prompt", "name" :@NAME@,"x":-0}"#)];
const TASK: FixedMembers = &[("taskId", NAME)];

/// The client's and the server's form of a name.
type NamePair = (&'static str, &'static str);

const PLAIN: NamePair = ("\"t\"", "\"t\"");
/// A client may escape characters of a name.
const ESCAPED: NamePair = ("\"\\u0074\"", "\"\\u0074\"");
const PREFIXED: NamePair = ("\"echo__t\"", "\"t\"");
const PREFIXED_ESCAPED: NamePair = ("\"\\u0065cho_\\u005ft\"", "\"t\"");
const URI: NamePair = ("\"x://t\"", "\"x://t\"");
const CREATED_TASK: NamePair = ("\"task-0\"", "\"task-0\"");

const fn trip_spec(
    request: &'static str,
    fixed: FixedMembers,
    name: NamePair,
    kind: TripKind,
) -> TripSpec {
    let road = match kind {
        // Concurrent calls share one server process here, so a server request or log line would be
        // ambiguous.
        TripKind::Answered(..)
        | TripKind::AnsweredWithError(_)
        | TripKind::Cancelled(_)
        | TripKind::UrlCompleted => TripEndpoint::PerSession,
        TripKind::Notified(name) if name.len() != PROGRESS.len() => TripEndpoint::PerSession,
        TripKind::Result(_)
        | TripKind::Task
        | TripKind::Error
        | TripKind::Notified(_)
        | TripKind::Suppressed(_) => TripEndpoint::Server,
    };
    TripSpec {
        request,
        fixed,
        kind,
        endpoint: road,
        name,
    }
}

const PROGRESS: &str = "ProgressNotification";

const fn call_spec(kind: TripKind) -> TripSpec {
    trip_spec("CallToolRequest", TOOL, PLAIN, kind)
}

const fn at_all_servers(mut row: TripSpec) -> TripSpec {
    row.endpoint = TripEndpoint::All;
    row
}

const CALL: TripKind = TripKind::Result("CallToolResult");
const GET: TripKind = TripKind::Result("GetPromptResult");
const COMPLETE: TripKind = TripKind::Result("CompleteResult");

/// The message types that pass through. Types unknown to a revision are skipped.
pub(super) const TRIP_SPECS: &[TripSpec] = &[
    call_spec(CALL),
    trip_spec("CallToolRequest", TOOL, ESCAPED, CALL),
    at_all_servers(trip_spec("CallToolRequest", TOOL, PREFIXED, CALL)),
    at_all_servers(trip_spec("CallToolRequest", TOOL, PREFIXED_ESCAPED, CALL)),
    call_spec(TripKind::Error),
    at_all_servers(trip_spec(
        "CallToolRequest",
        TOOL,
        PREFIXED,
        TripKind::Error,
    )),
    trip_spec("GetPromptRequest", PROMPT, PLAIN, GET),
    at_all_servers(trip_spec("GetPromptRequest", PROMPT, PREFIXED, GET)),
    trip_spec(
        "ReadResourceRequest",
        RESOURCE,
        URI,
        TripKind::Result("ReadResourceResult"),
    ),
    trip_spec("CompleteRequest", REFERENCE, PLAIN, COMPLETE),
    at_all_servers(trip_spec("CompleteRequest", REFERENCE, PREFIXED, COMPLETE)),
    trip_spec("CallToolRequest", AS_TASK, PLAIN, TripKind::Task),
    trip_spec(
        "GetTaskRequest",
        TASK,
        CREATED_TASK,
        TripKind::Result("GetTaskResult"),
    ),
    trip_spec(
        "GetTaskPayloadRequest",
        TASK,
        CREATED_TASK,
        TripKind::Result("GetTaskPayloadResult"),
    ),
    trip_spec(
        "CancelTaskRequest",
        TASK,
        CREATED_TASK,
        TripKind::Result("CancelTaskResult"),
    ),
    call_spec(TripKind::Notified(PROGRESS)),
    call_spec(TripKind::Notified("LoggingMessageNotification")),
    call_spec(TripKind::UrlCompleted),
    call_spec(TripKind::Answered(
        "CreateMessageRequest",
        "CreateMessageResult",
    )),
    call_spec(TripKind::Answered("ElicitRequest", "ElicitResult")),
    call_spec(TripKind::Answered("ListRootsRequest", "ListRootsResult")),
    call_spec(TripKind::AnsweredWithError("CreateMessageRequest")),
    call_spec(TripKind::AnsweredWithError("ElicitRequest")),
    call_spec(TripKind::AnsweredWithError("ListRootsRequest")),
    call_spec(TripKind::Cancelled("CreateMessageRequest")),
    call_spec(TripKind::Cancelled("ElicitRequest")),
    call_spec(TripKind::Cancelled("ListRootsRequest")),
    call_spec(TripKind::Suppressed("ToolListChangedNotification")),
    call_spec(TripKind::Suppressed("PromptListChangedNotification")),
    call_spec(TripKind::Suppressed("ResourceListChangedNotification")),
];

/// Requests for the gateway itself, with any params.
pub(super) const GATEWAY_REQUESTS: &[(&str, FixedMembers)] = &[
    ("PingRequest", &[]),
    ("SubscribeRequest", &[("uri", "\"x://t\"")]),
    ("UnsubscribeRequest", &[("uri", "\"x://t\"")]),
    ("SetLevelRequest", &[]),
];

/// Client notifications without forwarding.
pub(super) const UNFORWARDED: &[&str] = &[
    "InitializedNotification",
    "CancelledNotification",
    "ProgressNotification",
    "RootsListChangedNotification",
];

/// Server notifications about an object, for subscribers: the type, and the naming members.
pub(super) const OBJECT_NOTIFICATIONS: &[(&str, FixedMembers)] = &[
    ("ResourceUpdatedNotification", &[("uri", "\"x://t\"")]),
    ("TaskStatusNotification", &[("taskId", "\"task-news\"")]),
];

/// A list of the server: method, member, item type, key, and the key's value in the first and in
/// later items.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListSpec {
    pub(super) method: &'static str,
    pub(super) member: &'static str,
    pub(super) item: &'static str,
    pub(super) key: &'static str,
    pub(super) first: &'static str,
    pub(super) others: &'static str,
}

const fn list_spec(
    method: &'static str,
    member: &'static str,
    item: &'static str,
    key: &'static str,
    first: &'static str,
    others: &'static str,
) -> ListSpec {
    ListSpec {
        method,
        member,
        item,
        key,
        first,
        others,
    }
}

pub(super) const LISTS: &[ListSpec] = &[
    list_spec("tools/list", "tools", "Tool", "name", "t", "t-@"),
    list_spec("prompts/list", "prompts", "Prompt", "name", "t", "t-@"),
    list_spec(
        "resources/list",
        "resources",
        "Resource",
        "uri",
        "x://t",
        "x://t/@",
    ),
    list_spec(
        "resources/templates/list",
        "resourceTemplates",
        "ResourceTemplate",
        "uriTemplate",
        "y://t/{a}",
        "y://t/@/{a}",
    ),
];

/// The tasks created by earlier calls.
pub(super) const TASKS: ListSpec =
    list_spec("tasks/list", "tasks", "Task", "taskId", "task-0", "task-@");
