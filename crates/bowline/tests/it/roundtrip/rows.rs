//! Which types of messages go through, and what the gateway keeps to itself.

use super::trip::{Kind, NAME, Road, Row};

/// Members that are given in place of made ones; an empty text leaves one out.
type Fixed = &'static [(&'static str, &'static str)];

/// The params of a call of the one tool; a call as a task has another kind of answer.
const TOOL: Fixed = &[("name", NAME), ("task", "")];
const AS_TASK: Fixed = &[("name", NAME), ("task", r#"{ "ttl" : 60000, "x-y":1.0}"#)];
const PROMPT: Fixed = &[("name", NAME)];
const RESOURCE: Fixed = &[("uri", NAME)];
const REFERENCE: Fixed = &[("ref", r#"{"type":"ref/prompt", "name" :@NAME@,"x":-0}"#)];
const TASK: Fixed = &[("taskId", NAME)];

/// What stands for a name: as the client writes it, and as the server reads it.
type Name = (&'static str, &'static str);

const PLAIN: Name = ("\"t\"", "\"t\"");
/// Not all clients spell a name as we do.
const SPELT: Name = ("\"\\u0074\"", "\"\\u0074\"");
const VISIBLE: Name = ("\"echo__t\"", "\"t\"");
const VISIBLE_SPELT: Name = ("\"\\u0065cho_\\u005ft\"", "\"t\"");
const URI: Name = ("\"x://t\"", "\"x://t\"");
const MADE: Name = ("\"task-0\"", "\"task-0\"");

const fn row(request: &'static str, fixed: Fixed, name: Name, kind: Kind) -> Row {
    let road = match kind {
        // Several may be asked at once at a server that all share, and nobody could say whose a
        // question or a line of the log is.
        Kind::Asked(..) | Kind::Refused(_) | Kind::Withdrawn(_) | Kind::Completed => Road::Own,
        Kind::Told(name) if name.len() != PROGRESS.len() => Road::Own,
        Kind::Result(_) | Kind::Task | Kind::Error | Kind::Told(_) | Kind::Swallowed(_) => {
            Road::Server
        }
    };
    Row {
        request,
        fixed,
        kind,
        road,
        name,
    }
}

const PROGRESS: &str = "ProgressNotification";

const fn call(kind: Kind) -> Row {
    row("CallToolRequest", TOOL, PLAIN, kind)
}

const fn at_all(mut row: Row) -> Row {
    row.road = Road::All;
    row
}

const CALL: Kind = Kind::Result("CallToolResult");
const GET: Kind = Kind::Result("GetPromptResult");
const COMPLETE: Kind = Kind::Result("CompleteResult");

/// What goes through. A type that a revision does not know is not asked of it.
pub(super) const ROWS: &[Row] = &[
    call(CALL),
    row("CallToolRequest", TOOL, SPELT, CALL),
    at_all(row("CallToolRequest", TOOL, VISIBLE, CALL)),
    at_all(row("CallToolRequest", TOOL, VISIBLE_SPELT, CALL)),
    call(Kind::Error),
    at_all(row("CallToolRequest", TOOL, VISIBLE, Kind::Error)),
    row("GetPromptRequest", PROMPT, PLAIN, GET),
    at_all(row("GetPromptRequest", PROMPT, VISIBLE, GET)),
    row(
        "ReadResourceRequest",
        RESOURCE,
        URI,
        Kind::Result("ReadResourceResult"),
    ),
    row("CompleteRequest", REFERENCE, PLAIN, COMPLETE),
    at_all(row("CompleteRequest", REFERENCE, VISIBLE, COMPLETE)),
    row("CallToolRequest", AS_TASK, PLAIN, Kind::Task),
    row("GetTaskRequest", TASK, MADE, Kind::Result("GetTaskResult")),
    row(
        "GetTaskPayloadRequest",
        TASK,
        MADE,
        Kind::Result("GetTaskPayloadResult"),
    ),
    row(
        "CancelTaskRequest",
        TASK,
        MADE,
        Kind::Result("CancelTaskResult"),
    ),
    call(Kind::Told(PROGRESS)),
    call(Kind::Told("LoggingMessageNotification")),
    call(Kind::Completed),
    call(Kind::Asked("CreateMessageRequest", "CreateMessageResult")),
    call(Kind::Asked("ElicitRequest", "ElicitResult")),
    call(Kind::Asked("ListRootsRequest", "ListRootsResult")),
    call(Kind::Refused("CreateMessageRequest")),
    call(Kind::Refused("ElicitRequest")),
    call(Kind::Refused("ListRootsRequest")),
    call(Kind::Withdrawn("CreateMessageRequest")),
    call(Kind::Withdrawn("ElicitRequest")),
    call(Kind::Withdrawn("ListRootsRequest")),
    call(Kind::Swallowed("ToolListChangedNotification")),
    call(Kind::Swallowed("PromptListChangedNotification")),
    call(Kind::Swallowed("ResourceListChangedNotification")),
];

/// What the gateway answers itself, however its params look.
pub(super) const OWN: &[(&str, Fixed)] = &[
    ("PingRequest", &[]),
    ("SubscribeRequest", &[("uri", "\"x://t\"")]),
    ("UnsubscribeRequest", &[("uri", "\"x://t\"")]),
    ("SetLevelRequest", &[]),
];

/// What a client says and no server hears.
pub(super) const UNHEARD: &[&str] = &[
    "InitializedNotification",
    "CancelledNotification",
    "ProgressNotification",
    "RootsListChangedNotification",
];

/// What the server says of one thing, to those who asked about it: the type, and the members that
/// name it.
pub(super) const NEWS: &[(&str, Fixed)] = &[
    ("ResourceUpdatedNotification", &[("uri", "\"x://t\"")]),
    ("TaskStatusNotification", &[("taskId", "\"task-news\"")]),
];

/// What the server offers: the method that lists it, the member it is in, its type, its key and
/// what stands there in the first and in all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) method: &'static str,
    pub(super) member: &'static str,
    pub(super) item: &'static str,
    pub(super) key: &'static str,
    pub(super) first: &'static str,
    pub(super) others: &'static str,
}

const fn list(
    (method, member): (&'static str, &'static str),
    item: &'static str,
    key: &'static str,
    (first, others): (&'static str, &'static str),
) -> List {
    List {
        method,
        member,
        item,
        key,
        first,
        others,
    }
}

pub(super) const LISTS: &[List] = &[
    list(("tools/list", "tools"), "Tool", "name", ("t", "t-@")),
    list(("prompts/list", "prompts"), "Prompt", "name", ("t", "t-@")),
    list(
        ("resources/list", "resources"),
        "Resource",
        "uri",
        ("x://t", "x://t/@"),
    ),
    list(
        ("resources/templates/list", "resourceTemplates"),
        "ResourceTemplate",
        "uriTemplate",
        ("y://t/{a}", "y://t/@/{a}"),
    ),
];

/// Those tasks that calls made before.
pub(super) const TASKS: List = list(
    ("tasks/list", "tasks"),
    "Task",
    "taskId",
    ("task-0", "task-@"),
);
