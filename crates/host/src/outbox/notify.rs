//! Notifies agents and operators about the outcome of queued writes.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::client_handle::SessionKey;
use bowline_core::error::CallError;
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_journal::MessageId;
use bowline_journal::audit::AuditRowKind;
use bowline_wire::jsonrpc::Envelope;
use bowline_wire::mcp::method;
use bowline_wire::splice::write_string;

use super::deliver::ServedCounts;
use super::queue_view::{delivery_status, policy_target, to_agent_json};
use super::queued_reply::write_uri;
use super::write_record::{WriteHead, WriteRecord};
use super::{LANE_PREFIX, OutboxShared};
use super::{QueuedCallState, QueuedCallView};
use crate::audit::{self, AuditOutcome};
use crate::events::EventKind;
use crate::ports::NotificationSink as _;

/// Maximum number of writes with a note.
const NOTES_MAX: usize = 65_536;

/// Subscription key for queued writes; not a valid server name.
pub(super) const SUBSCRIPTION_KEY: &str = LANE_PREFIX;

/// Logger name of the notifications.
const LOGGER: &str = "bowline.outbox";

/// In-memory notes about queued writes.
#[derive(Debug, Default)]
pub(super) struct WriteNotes {
    notes: HashMap<MessageId, WriteNote>,
    /// Credentials revoked while their writes may have been in flight.
    pub(super) revoked: std::collections::BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WriteNote {
    /// Session to notify.
    pub(super) session: Option<SessionKey>,
    /// Last failure.
    pub(super) error: Option<Arc<str>>,
    /// Failed attempts, counted only if the server answered another call since.
    failed_attempts: u32,
    /// Calls answered by the server at the last attempt.
    answered_calls: Option<u64>,
}

/// A write that is no longer queued.
#[derive(Debug)]
pub(super) struct FinishedWrite<'a> {
    pub(super) id: MessageId,
    pub(super) record: &'a WriteRecord,
    pub(super) view: &'a QueuedCallView,
    /// Audit kind.
    pub(super) kind: AuditRowKind,
    /// Outcome.
    pub(super) outcome: AuditOutcome,
}

impl WriteNotes {
    fn update(&mut self, id: MessageId, change: impl FnOnce(&mut WriteNote)) {
        if self.notes.len() < NOTES_MAX || self.notes.contains_key(&id) {
            change(self.notes.entry(id).or_default());
        }
    }

    /// Counts a failed attempt if the server answered other calls since the previous attempt.
    /// Returns the count, and whether this attempt counted.
    pub(super) fn count_try(&mut self, id: MessageId, served: ServedCounts) -> (u32, bool) {
        let mut counted = (0, false);
        self.update(id, |note| {
            let counts = served.after > note.answered_calls.unwrap_or(served.before);
            note.failed_attempts = note.failed_attempts.saturating_add(u32::from(counts));
            note.answered_calls = Some(served.after);
            counted = (note.failed_attempts, counts);
        });
        counted
    }

    pub(super) fn error(&self, id: MessageId) -> Option<Arc<str>> {
        self.notes.get(&id)?.error.clone()
    }
}

impl OutboxShared {
    /// Records a queued write and its session.
    pub(super) fn on_queued(&self, id: MessageId, session: Option<SessionKey>, head: &WriteHead) {
        if let Some(session) = session {
            lock(&self.notes).update(id, |note| note.session = Some(session));
            let (principal, scope) = head.principal_and_scope();
            self.sessions.record_identity(session, &principal, &scope);
        }
        tracing::info!(
            id = id.0, server = %head.server, tool = %head.tool, principal = %head.principal(),
            "write queued"
        );
        self.emit_event(QueuedCallState::Queued, id, head, None);
    }

    /// Records the failure of a write.
    pub(super) fn record_failure(&self, id: MessageId, error: &CallError) {
        let message = error.to_string().into();
        lock(&self.notes).update(id, |note| note.error = Some(message));
    }

    /// Notifies all interested parties that a write is no longer queued.
    pub(super) fn on_finished(&self, finished: FinishedWrite<'_>) {
        let FinishedWrite {
            id,
            record,
            view: letter,
            ..
        } = finished;
        let head = &record.head;
        let note = lock(&self.notes).notes.remove(&id).unwrap_or_default();
        let (principal, server, tool) = (head.principal(), &head.server, &head.tool);
        let reason = letter.last_error.clone();
        match &reason {
            Some(reason) => tracing::warn!(
                id = id.0, %server, %tool, %principal, %reason,
                "queued write could not be delivered"
            ),
            None => tracing::info!(
                id = id.0, %server, %tool, %principal, "queued write delivered"
            ),
        }
        self.emit_event(letter.state.clone(), id, head, reason.clone());
        self.notify_sessions(id, note.session, letter);
        self.audit_finished(finished, reason);
    }

    /// Notifies that an operator dropped a write whose delivery was promised.
    pub(super) fn on_dropped(&self, id: MessageId, record: &WriteRecord, view: QueuedCallView) {
        let view = QueuedCallView {
            state: QueuedCallState::Dead,
            position: 0,
            last_error: Some("dropped by a person".into()),
            ..view
        };
        self.on_finished(FinishedWrite {
            id,
            record,
            view: &view,
            kind: AuditRowKind::Dropped,
            outcome: AuditOutcome::Word("dropped"),
        });
    }

    fn audit_finished(&self, finished: FinishedWrite<'_>, reason: Option<Arc<str>>) {
        if !self.audit.is_enabled() {
            return;
        }
        let FinishedWrite {
            id,
            record,
            kind,
            outcome: end,
            ..
        } = finished;
        let mut entry = audit::AuditEntry::from_call(&record.to_call(), self.clock.unix_ms());
        (entry.kind, entry.outcome, entry.reason) = (kind, end, reason);
        entry.id = Some(id.0.to_string().into());
        entry.target = audit::AuditTarget::Named {
            server: Some(Arc::clone(&record.head.server)),
            name: Arc::clone(&record.head.tool),
        };
        self.audit.record(entry);
    }

    fn notify_sessions(&self, id: MessageId, session: Option<SessionKey>, view: &QueuedCallView) {
        let level = match view.state {
            QueuedCallState::Dead => LogLevel::Error,
            QueuedCallState::Delivered
            | QueuedCallState::Queued
            | QueuedCallState::Sending
            | QueuedCallState::Other(_) => LogLevel::Info,
        };
        let may_hear = |session| {
            self.sessions
                .can_learn_outcome(session, policy_target(view), delivery_status(view))
        };
        // The session's rights may have changed since the write was queued.
        if let Some(session) = session.filter(|session| may_hear(*session)) {
            let scope = bowline_core::call::EndpointScope::Server(Arc::clone(&view.server));
            let min_level = lock(&self.sessions.log_levels).session_level(session, &scope);
            if min_level.is_none_or(|min_level| min_level <= level) {
                let message = log_notification(level, &to_agent_json(view));
                self.fanout.deliver(session, message.into());
            }
        }
        let uri = write_uri(id);
        let subscribers =
            lock(&self.sessions.subscriptions).uri_subscribers(SUBSCRIPTION_KEY, &uri);
        for (session, known_as) in subscribers.into_iter().filter(|(one, _)| may_hear(*one)) {
            self.fanout
                .deliver(session, updated_notification(&known_as).into());
        }
    }

    fn emit_event(
        &self,
        state: QueuedCallState,
        id: MessageId,
        head: &WriteHead,
        reason: Option<Arc<str>>,
    ) {
        self.events.publish(EventKind::Outbox {
            id: id.0.to_string().into(),
            principal: Arc::clone(head.principal()),
            server: Arc::clone(&head.server),
            tool: Arc::clone(&head.tool),
            state,
            reason,
        });
    }
}

fn log_notification(level: LogLevel, data: &str) -> Vec<u8> {
    let level = level.as_str();
    let params = format!("{{\"level\":\"{level}\",\"logger\":\"{LOGGER}\",\"data\":{data}}}");
    let method = method::MESSAGE;
    Envelope::Notification { method }.to_vec(params.as_bytes())
}

fn updated_notification(uri: &str) -> Vec<u8> {
    let method = method::RESOURCES_UPDATED;
    let mut notification = Vec::new();
    Envelope::Notification { method }.write(&mut notification, |out| {
        out.extend_from_slice(b"{\"uri\":");
        write_string(out, uri);
        out.push(b'}');
    });
    notification
}
