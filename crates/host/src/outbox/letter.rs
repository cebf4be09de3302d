//! Queued writes as they are shown.

use std::sync::Arc;

use bowline_core::call::Kind;
use bowline_core::lane::LaneTimes;
use bowline_core::policy::Thing;
use bowline_core::time::Now;
use bowline_journal::{Entry, Standing};
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::LANES;
use super::index::Ended;
use super::record::Record;
use crate::decide::Delivered;

/// Why a write cannot be shown or sent that is not as it was written.
const DAMAGED: &str = "it is damaged on the disk";

/// How a queued write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LetterState {
    /// It waits for its turn.
    Queued,
    /// It is being delivered.
    Sending,
    /// It could not be delivered; a person may try again.
    Dead,
    /// It was delivered.
    Delivered,
}

impl LetterState {
    /// Returns the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sending => "sending",
            Self::Dead => "dead",
            Self::Delivered => "delivered",
        }
    }
}

/// One queued write.
#[derive(Clone, Debug, Serialize)]
pub struct Letter {
    /// Its number, as its caller was told.
    pub id: String,
    /// How it stands.
    pub state: LetterState,
    /// Who made it.
    pub principal: Arc<str>,
    /// The server it is for.
    pub server: Arc<str>,
    /// The server's own name of the tool; empty where it is not known any more.
    pub tool: Arc<str>,
    /// Its idempotency key; empty likewise.
    pub key: Arc<str>,
    /// How many are before it in its lane, itself counted; 0 where it waits no more.
    pub position: u64,
    /// How often it was sent.
    pub attempts: u32,
    /// What it failed with: for ever where it is dead, else the last time, as far as this process
    /// knows.
    pub last_error: Option<Arc<str>>,
    /// When it is tried next, in milliseconds from now; absent where that is not up to the clock.
    pub next_try_ms: Option<u64>,
    /// When it was stored, in milliseconds since 1970; absent where it is not known any more.
    pub stored_at_ms: Option<u64>,
    /// How old it is, in milliseconds.
    pub age_ms: Option<u64>,
    /// Until when it is worth delivering, in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// When it was delivered, in milliseconds since 1970.
    pub done_at_ms: Option<u64>,
    /// Its parameters, where one is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
    /// What came of it, where that was kept and one is looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
}

/// The queued writes of one principal to one server, in order.
#[derive(Clone, Debug, Serialize)]
pub struct LaneLetters {
    /// Who made them.
    pub principal: Arc<str>,
    /// The server they are for.
    pub server: Arc<str>,
    /// Whether that server is configured; where it is not, they wait.
    pub configured: bool,
    /// How many wait.
    pub queued: u64,
    /// How many could not be delivered.
    pub dead: u64,
    /// How long the first waits, in milliseconds.
    pub oldest_age_ms: Option<u64>,
}

/// What waits for one server, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServerLetters {
    /// How many wait.
    pub queued: u64,
    /// How many could not be delivered.
    pub dead: u64,
    /// How long the first waits, in milliseconds.
    pub oldest_age_ms: Option<u64>,
}

/// What a letter is shown by: the clocks, and what is known of its lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sight {
    pub(super) now: Now,
    pub(super) unix_ms: u64,
    pub(super) times: Option<LaneTimes>,
}

impl Letter {
    /// Returns what it is decided as: its tool, and whether that answered.
    pub(super) fn about(&self) -> (Thing<'_>, Delivered) {
        let thing = Thing {
            kind: Kind::Tool,
            server: &self.server,
            name: &self.tool,
            arguments: None,
        };
        let delivered = match self.state {
            LetterState::Delivered => Delivered::Yes,
            LetterState::Queued | LetterState::Sending | LetterState::Dead => Delivered::No,
        };
        (thing, delivered)
    }

    pub(super) fn of(entry: &Entry, last_error: Option<Arc<str>>, sight: Sight) -> Self {
        let (principal, server) = parties(entry.lane.as_str());
        let record = Record::read(&entry.body);
        let head = record.as_ref().map(|record| &record.head);
        let (state, reason) = match &entry.standing {
            Standing::Waiting => (LetterState::Queued, None),
            Standing::Held => (LetterState::Sending, None),
            Standing::Dead(reason) => (LetterState::Dead, Some(Arc::clone(reason))),
            Standing::Damaged => (LetterState::Dead, Some(DAMAGED.into())),
        };
        let is_next = state == LetterState::Queued && entry.position == 1;
        let times = sight.times.filter(|_| is_next);
        Self {
            id: entry.id.0.to_string(),
            state,
            principal: principal.into(),
            server: server.into(),
            tool: head.map_or_else(Arc::default, |head| Arc::clone(&head.tool)),
            key: head.map_or_else(Arc::default, |head| Arc::clone(&head.key)),
            position: entry.position,
            attempts: entry.attempts,
            last_error: reason.or(last_error),
            next_try_ms: times.map(|times| times.due.millis_since(sight.now)),
            stored_at_ms: Some(entry.stored_unix_ms),
            age_ms: Some(sight.unix_ms.saturating_sub(entry.stored_unix_ms)),
            expires_at_ms: entry.expires_unix_ms,
            done_at_ms: None,
            params: None,
            result: None,
        }
    }

    /// Returns one that was delivered.
    pub(super) fn ended(ended: &Ended) -> Self {
        let (principal, server) = parties(ended.lane.as_str());
        // What was too long to be a name was hashed.
        let (tool, key) = ended.dedupe.split_once('\n').unwrap_or_default();
        Self {
            id: ended.done.id.0.to_string(),
            state: LetterState::Delivered,
            principal: principal.into(),
            server: server.into(),
            tool: tool.into(),
            key: key.into(),
            position: 0,
            attempts: 0,
            last_error: None,
            next_try_ms: None,
            stored_at_ms: None,
            age_ms: None,
            expires_at_ms: None,
            done_at_ms: Some(ended.done.unix_ms),
            params: None,
            result: ended.done.result.as_ref().and_then(raw),
        }
    }

    /// Shows what it says as well.
    pub(super) fn opened(self, entry: &Entry) -> Self {
        let record = Record::read(&entry.body);
        let params = record.and_then(|record| raw(&record.params));
        Self { params, ..self }
    }

    /// Returns what its principal may know of it, as an agent is told: one JSON object.
    pub(super) fn told(&self) -> String {
        let mut said = json!({
            "id": self.id,
            "state": self.state,
            "server": self.server,
            "tool": self.tool,
            "idempotencyKey": self.key,
        });
        if let Some(members) = said.as_object_mut() {
            if self.position > 0 {
                members.insert("position".into(), self.position.into());
                members.insert("attempts".into(), self.attempts.into());
            }
            if let Some(error) = &self.last_error {
                members.insert("error".into(), (&**error).into());
            }
            if let Some(result) = &self.result
                && let Ok(result) = serde_json::to_value(result)
            {
                members.insert("result".into(), result);
            }
        }
        said.to_string()
    }
}

/// Returns whose lane it is and which server it leads to; a server's name holds no slash.
pub(super) fn parties(lane: &str) -> (&str, &str) {
    let name = lane.strip_prefix(LANES).unwrap_or(lane);
    name.rsplit_once('/').unwrap_or((name, ""))
}

fn raw(bytes: &Bytes) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    RawValue::from_string(text.to_owned()).ok()
}
