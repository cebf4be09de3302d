//! One row as it is kept: a JSON object whose bytes are what is hashed.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// What a row tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A call that was answered, or failed.
    Call,
    /// A call or a subscription that a rule, a pin, a rate or a budget refused.
    Denied,
    /// A call that was stored, to be delivered later.
    Queued,
    /// A stored call that reached its server.
    Delivered,
    /// A stored call that will not be tried again.
    Dead,
    /// A stored call that a person took back.
    Dropped,
    /// A stored call that was not delivered in time.
    Expired,
    /// What the owner did through the API.
    Admin,
    /// The trail was opened by a gateway.
    Started,
    /// The trail was closed, all that was noted being written.
    Stopped,
    /// The first row of a file.
    File,
    /// Rows were lost here.
    Gap,
    /// A request that proved nobody.
    Unauthenticated,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Call,
        Self::Denied,
        Self::Queued,
        Self::Delivered,
        Self::Dead,
        Self::Dropped,
        Self::Expired,
        Self::Admin,
        Self::Started,
        Self::Stopped,
        Self::File,
        Self::Gap,
        Self::Unauthenticated,
    ];

    /// Returns its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Denied => "denied",
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
            Self::Expired => "expired",
            Self::Admin => "admin",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::File => "file",
            Self::Gap => "gap",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// Returns the kind of this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// One row. What does not apply is left out of its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row<'a> {
    /// Its number, given by the trail.
    pub seq: u64,
    /// When it was noted, in milliseconds since 1970.
    pub at_ms: u64,
    /// What it tells of.
    pub kind: Kind,
    /// The ring it belongs to; absent for that of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<Cow<'a, str>>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Cow<'a, str>>,
    /// Names the credential that proved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Cow<'a, str>>,
    /// The address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Cow<'a, str>>,
    /// Tells sessions of one life of the gateway apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Where the name was looked up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Cow<'a, str>>,
    /// The server it went to, or was meant for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Cow<'a, str>>,
    /// What was asked for: a tool, a prompt, a URI, a task; or what was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Cow<'a, str>>,
    /// The method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Cow<'a, str>>,
    /// How it ended, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'a, str>>,
    /// The class of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Cow<'a, str>>,
    /// Whether it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Cow<'a, str>>,
    /// Where the answer came from, or the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Cow<'a, str>>,
    /// Why, where a person will ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// SHA-256 of the arguments as they came, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Cow<'a, str>>,
    /// SHA-256 of the result or error as it was given out, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Cow<'a, str>>,
    /// The idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'a, str>>,
    /// Names a stored call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// What was said, where it is to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload<'a>>,
    /// How many alike it stands for; one where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// When the first of these was, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// How many rows are missing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// The hash of the row before the first one of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Cow<'a, str>>,
    /// The number of the oldest row that was kept when a file was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from: Option<u64>,
    /// How many rows had been let go before their time when a file was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub let_go_early: Option<u64>,
}

/// What was said, without secrets and without an end where it was long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload<'a> {
    /// The arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Cow<'a, str>>,
    /// The result or error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Cow<'a, str>>,
}

impl Row<'_> {
    /// Returns a row that tells of nothing more than its kind.
    #[must_use]
    pub const fn new(kind: Kind, at_ms: u64) -> Self {
        Self {
            seq: 0,
            at_ms,
            kind,
            ring: None,
            principal: None,
            credential: None,
            peer: None,
            session: None,
            scope: None,
            server: None,
            name: None,
            method: None,
            outcome: None,
            class: None,
            execution: None,
            origin: None,
            reason: None,
            duration_us: None,
            arguments: None,
            result: None,
            key: None,
            id: None,
            payload: None,
            count: None,
            since_ms: None,
            lost: None,
            prev: None,
            kept_from: None,
            let_go_early: None,
        }
    }

    /// Returns the same row, which borrows nothing.
    #[must_use]
    pub fn into_owned(self) -> Row<'static> {
        Row {
            seq: self.seq,
            at_ms: self.at_ms,
            kind: self.kind,
            ring: owned(self.ring),
            principal: owned(self.principal),
            credential: owned(self.credential),
            peer: owned(self.peer),
            session: self.session,
            scope: owned(self.scope),
            server: owned(self.server),
            name: owned(self.name),
            method: owned(self.method),
            outcome: owned(self.outcome),
            class: owned(self.class),
            execution: owned(self.execution),
            origin: owned(self.origin),
            reason: owned(self.reason),
            duration_us: self.duration_us,
            arguments: owned(self.arguments),
            result: owned(self.result),
            key: owned(self.key),
            id: owned(self.id),
            payload: self.payload.map(|payload| Payload {
                arguments: owned(payload.arguments),
                result: owned(payload.result),
            }),
            count: self.count,
            since_ms: self.since_ms,
            lost: self.lost,
            prev: owned(self.prev),
            kept_from: self.kept_from,
            let_go_early: self.let_go_early,
        }
    }
}

fn owned(text: Option<Cow<'_, str>>) -> Option<Cow<'static, str>> {
    text.map(|text| Cow::Owned(text.into_owned()))
}
