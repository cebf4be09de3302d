//! Claim of an executor name by one connection, until the connection ends or is fenced.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::time::MonotonicTime;
use bowline_link::websocket::DisconnectReason;
use bowline_link::websocket::close_codes;

use crate::connection::{ExecutorSession, SessionAttachment};
use crate::frames::ExecutorHello;
use crate::refusal::ExecutorRefusal;

use super::executor_entry::{CurrentConnection, ExecutorEntry};
use super::{DialDirection, RegistryShared, random_id};

/// A connection's claim of the name; released on drop.
#[derive(Debug)]
pub(super) struct NameClaim {
    shared: Arc<RegistryShared>,
    entry: Arc<ExecutorEntry>,
    number: u64,
    /// How the connection ended.
    ended: DisconnectReason,
    /// Whether callers could use the connection.
    was_used: bool,
    /// Value of `wait_until` before the claim.
    previous_wait: Option<MonotonicTime>,
}

impl NameClaim {
    /// Claims the name. The former owner is fenced and does not reconnect.
    pub(super) fn claim(
        shared: &Arc<RegistryShared>,
        entry: &Arc<ExecutorEntry>,
        direction: DialDirection,
        from: &str,
    ) -> Self {
        let mut state = entry.state();
        state.claim_number += 1;
        state.fence_connection();
        state.direction = Some(direction);
        state.peer = Some(from.into());
        // Callers wait for the handshake.
        let until = shared.clock.now().plus(shared.options.recovery_wait);
        let previous_wait = state.wait_until.replace(until);
        Self {
            shared: Arc::clone(shared),
            entry: Arc::clone(entry),
            number: state.claim_number,
            ended: DisconnectReason::Local,
            was_used: false,
            previous_wait,
        }
    }

    /// Attaches the session: the previous session for the same start of the executor, else a new
    /// session. `None` if a newer claim owns the name.
    pub(super) fn attach_session(&self, hello: &ExecutorHello) -> Option<SessionAttachment> {
        let mut replaced = None;
        let mut state = self.entry.state();
        if state.claim_number != self.number {
            return None;
        }
        let session = match state.session.take() {
            Some(session) if *session.instance() == hello.instance => session,
            before => {
                replaced = before;
                let instance = Arc::clone(&hello.instance);
                ExecutorSession::new(random_id(), instance, self.shared.options.flow)
            }
        };
        state.session = Some(Arc::clone(&session));
        let attached = session.attach();
        drop(state);
        if let Some(replaced) = replaced {
            replaced.end("the executor was started anew");
        }
        Some(attached)
    }

    /// Records why the connection failed.
    pub(super) fn record_failure(mut self, reason: &str) {
        self.ended = DisconnectReason::Invalid(reason.into());
    }

    /// Publishes a connection to callers until the end; returns how the connection ended, and the
    /// refusal if the right ended.
    pub(super) async fn serve_connection(
        mut self,
        current: CurrentConnection,
        credential: BoxFuture<'static, ExecutorRefusal>,
    ) -> (DisconnectReason, Option<ExecutorRefusal>) {
        let connection = Arc::clone(&current.connection);
        if !self.publish_connection(current) {
            connection.close(close_codes::FENCED, "another connection has this name now");
            return (DisconnectReason::Local, None);
        }
        let shared = Arc::clone(&self.shared);
        let mut expiry = None;
        self.ended = tokio::select! {
            biased;
            ended = connection.wait_closed() => ended,
            refusal = credential => {
                connection.close(close_codes::CREDENTIAL_ENDED, &refusal.reason);
                expiry = Some(refusal);
                connection.wait_closed().await
            }
            () = shared.lifecycle.shutdown().wait_closing() => {
                connection.close(close_codes::GOING_AWAY, "the gateway goes down");
                connection.wait_closed().await
            }
        };
        (self.ended.clone(), expiry)
    }

    /// Makes a connection current; `false` if a newer claim owns the name.
    fn publish_connection(&mut self, current: CurrentConnection) -> bool {
        {
            let mut state = self.entry.state();
            if state.claim_number != self.number {
                return false;
            }
            state.offers = current.connection.info().clone();
            state.since_ms = Some(self.shared.clock.unix_ms());
            state.lost_reason = None;
            state.lost_at = None;
            state.wait_until = None;
            state.current = Some(current);
        }
        self.was_used = true;
        self.entry.notify_changed();
        self.shared.emit_event(self.entry.name(), "connected", None);
        true
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        let (shared, entry) = (&self.shared, &self.entry);
        let reason: Arc<str> = self.ended.to_string().into();
        // A graceful close ends the servers too; callers do not wait.
        let in_order = matches!(
            self.ended,
            DisconnectReason::Closed { .. } | DisconnectReason::Local
        );
        let session = {
            let mut state = entry.state();
            if state.claim_number != self.number {
                drop(state);
                return shared.emit_event(entry.name(), "fenced", Some(reason));
            }
            let now = shared.clock.now();
            state.drop_connection();
            state.lost_reason = Some(Arc::clone(&reason));
            if self.was_used {
                state.since_ms = Some(shared.clock.unix_ms());
                state.lost_at = Some(now);
                state.wait_until = (!in_order).then(|| now.plus(shared.options.recovery_wait));
            } else {
                state.wait_until = self.previous_wait;
            }
            state.session.clone()
        };
        entry.notify_changed();
        let word = if in_order { "left" } else { "lost" };
        shared.emit_event(entry.name(), word, Some(reason));
        let Some(session) = session else {
            return;
        };
        if in_order {
            return end_session(entry, self.number, &session);
        }
        let (entry, number) = (Arc::clone(entry), self.number);
        let keep = shared.options.session_retention;
        let shutdown = shared.lifecycle.shutdown().clone();
        shared.tasks.spawn("executor session", async move {
            tokio::select! {
                () = tokio::time::sleep(keep) => {}
                () = shutdown.wait_closing() => {}
            }
            end_session(&entry, number, &session);
        });
    }
}

/// Ends a session after the retention time.
fn end_session(entry: &ExecutorEntry, number: u64, session: &ExecutorSession) {
    {
        let mut state = entry.state();
        if state.claim_number != number {
            return;
        }
        state.session = None;
    }
    session.end("the executor did not come back");
}
