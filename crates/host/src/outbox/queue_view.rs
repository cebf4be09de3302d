//! Views of queued writes for operators and agents.

use std::sync::Arc;

use bowline_api::outbox::{QueuedCallState, QueuedCallView};
use bowline_core::call::FeatureKind;
use bowline_core::lane::LaneTimes;
use bowline_core::policy::PolicyTarget;
use bowline_core::time::MonotonicTime;
use bowline_journal::{MessageStatus, MessageView};
use bytes::Bytes;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::LANE_PREFIX;
use super::delivered_index::DeliveredWrite;
use super::write_record::WriteRecord;
use crate::authorizer::DeliveryStatus;

/// Reason shown for a damaged record.
const DAMAGED: &str = "it is damaged on the disk";

/// The queued writes of a principal to a server.
#[derive(Clone, Debug, Serialize)]
pub struct OutboxLaneView {
    /// Principal.
    pub principal: Arc<str>,
    /// Target server.
    pub server: Arc<str>,
    /// True if the server is configured; otherwise the writes wait.
    pub configured: bool,
    /// Number of queued writes.
    pub queued: u64,
    /// Number of dead writes.
    pub dead: u64,
    /// Age of the oldest in milliseconds.
    pub oldest_age_ms: Option<u64>,
}

/// Context of a view: clocks and lane schedule.
#[derive(Clone, Copy, Debug)]
pub(super) struct ViewContext {
    pub(super) now: MonotonicTime,
    pub(super) unix_ms: u64,
    pub(super) times: Option<LaneTimes>,
}

/// Returns the policy target of the write: its tool.
pub(super) fn policy_target(view: &QueuedCallView) -> PolicyTarget<'_> {
    PolicyTarget {
        kind: FeatureKind::Tool,
        server: &view.server,
        name: &view.tool,
        arguments: None,
    }
}

/// Returns whether the write was delivered.
pub(super) const fn delivery_status(view: &QueuedCallView) -> DeliveryStatus {
    match view.state {
        QueuedCallState::Delivered => DeliveryStatus::Yes,
        QueuedCallState::Queued
        | QueuedCallState::Sending
        | QueuedCallState::Dead
        | QueuedCallState::Other(_) => DeliveryStatus::No,
    }
}

pub(super) fn view_entry(
    entry: &MessageView,
    last_error: Option<Arc<str>>,
    context: ViewContext,
) -> QueuedCallView {
    let (principal, server) = lane_parties(entry.lane.as_str());
    let record = WriteRecord::parse(&entry.body);
    let head = record.as_ref().map(|record| &record.head);
    let (state, reason) = match &entry.status {
        MessageStatus::Queued => (QueuedCallState::Queued, None),
        MessageStatus::Leased => (QueuedCallState::Sending, None),
        MessageStatus::DeadLetter(reason) => (QueuedCallState::Dead, Some(Arc::clone(reason))),
        MessageStatus::Damaged => (QueuedCallState::Dead, Some(DAMAGED.into())),
    };
    let is_next = state == QueuedCallState::Queued && entry.position == 1;
    let times = context.times.filter(|_| is_next);
    QueuedCallView {
        id: entry.id.0.to_string(),
        state,
        principal: principal.into(),
        server: server.into(),
        tool: head.map_or_else(Arc::default, |head| Arc::clone(&head.tool)),
        key: head.map_or_else(Arc::default, |head| Arc::clone(&head.key)),
        position: entry.position,
        attempts: entry.attempts,
        last_error: reason.or(last_error),
        next_try_ms: times.map(|times| times.due_at.millis_since(context.now)),
        stored_at_ms: Some(entry.stored_unix_ms),
        age_ms: Some(context.unix_ms.saturating_sub(entry.stored_unix_ms)),
        expires_at_ms: entry.expires_unix_ms,
        done_at_ms: None,
        params: None,
        result: None,
    }
}

/// Returns the view of a delivered write.
pub(super) fn view_delivered(write: &DeliveredWrite) -> QueuedCallView {
    let (principal, server) = lane_parties(write.lane.as_str());
    // A name too long for the journal was hashed.
    let (tool, key) = write.dedupe.split_once('\n').unwrap_or_default();
    QueuedCallView {
        id: write.done.id.0.to_string(),
        state: QueuedCallState::Delivered,
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
        done_at_ms: Some(write.done.unix_ms),
        params: None,
        result: write.done.result.as_ref().and_then(to_raw_json),
    }
}

/// Adds the parameters.
pub(super) fn with_params(view: QueuedCallView, entry: &MessageView) -> QueuedCallView {
    let record = WriteRecord::parse(&entry.body);
    let params = record.and_then(|record| to_raw_json(&record.params));
    QueuedCallView { params, ..view }
}

/// Renders the view for its principal, as a JSON object.
pub(super) fn to_agent_json(view: &QueuedCallView) -> String {
    let mut status = json!({
        "id": view.id,
        "state": view.state,
        "server": view.server,
        "tool": view.tool,
        "idempotencyKey": view.key,
    });
    if let Some(members) = status.as_object_mut() {
        if view.position > 0 {
            members.insert("position".into(), view.position.into());
            members.insert("attempts".into(), view.attempts.into());
        }
        if let Some(error) = &view.last_error {
            members.insert("error".into(), (&**error).into());
        }
        if let Some(result) = &view.result
            && let Ok(result) = serde_json::to_value(result)
        {
            members.insert("result".into(), result);
        }
    }
    status.to_string()
}

/// Splits a lane name into principal and server; a server name contains no slash.
pub(super) fn lane_parties(lane: &str) -> (&str, &str) {
    let name = lane.strip_prefix(LANE_PREFIX).unwrap_or(lane);
    name.rsplit_once('/').unwrap_or((name, ""))
}

fn to_raw_json(bytes: &Bytes) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    RawValue::from_string(text.to_owned()).ok()
}
