//! Notifications of a server: to the client of a call, or as events of the link.

use std::sync::Arc;

use bowline_wire::mcp::{meta, method};
use bowline_wire::splice::replace_span;
use bowline_wire::{ObjectEditor, object};
use bytes::Bytes;

use super::pending_requests::Recipient;
use super::{CoalescedEvent, Demux, DemuxCounters, IncomingMessage, fail_request, parse_own_id};
use crate::link::{LinkError, LinkEvent, LinkExit};

/// Longest notification for a link event.
const EVENT_BYTES_MAX: usize = 64 * 1024;

impl<D: Demux> IncomingMessage<'_, D> {
    pub(super) fn dispatch_notification(&self) {
        match self.message.method().unwrap_or_default() {
            method::PROGRESS => self.forward_progress(),
            method::TOOLS_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Tools),
            method::PROMPTS_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Prompts),
            method::RESOURCES_LIST_CHANGED => self.events.emit_coalesced(CoalescedEvent::Resources),
            method::CANCELLED => self.handle_cancelled(),
            method::RESOURCES_UPDATED => self.emit_keyed_event("uri", |uri, notification| {
                LinkEvent::ResourceUpdated { uri, notification }
            }),
            method::TASKS_STATUS | method::TASKS_NOTIFICATION => {
                self.emit_keyed_event("taskId", |task, notification| LinkEvent::TaskStatus {
                    task,
                    notification,
                })
            }
            method::ELICITATION_COMPLETE => self.handle_elicitation_complete(),
            method::SUBSCRIPTIONS_ACKNOWLEDGED => self.handle_acknowledged(),
            method::MESSAGE => self.notify_client_or_emit(LinkEvent::Log),
            _ => self.notify_client_or_emit(LinkEvent::Other),
        }
    }

    fn forward_progress(&self) {
        let message = self.message;
        let token = message.params_span().and_then(|params| {
            let token = object::field(params.slice(message.bytes()), "progressToken")?;
            Some(token.shift(params.start))
        });
        let progress = token.and_then(|token| {
            let id = parse_own_id(token.slice(message.bytes()))?;
            let (caller, client_token) = self
                .demux
                .with_pending(|requests| requests.progress_target(id))?;
            Some((token, caller, client_token))
        });
        match progress {
            Some((token, caller, client_token)) => {
                caller.notify(replace_span(message.bytes(), token, &client_token).into())
            }
            None => DemuxCounters::increment(&self.demux.counters().late),
        }
    }

    /// The server cancels a server request.
    fn handle_cancelled(&self) {
        let params = self.message.params().unwrap_or_default();
        let Some(id) = object::field(params, "requestId") else {
            return;
        };
        let closed = self
            .demux
            .with_pending(|requests| requests.close_server_request(id.slice(params)));
        match closed {
            Some((caller, Some(request_id))) => caller.cancel_request(request_id),
            Some((_, None)) => {}
            // A modern server ends a change stream this way, and nothing else.
            None => {
                let listening = |id: &u64| {
                    self.demux
                        .with_pending(|requests| requests.is_subscription(*id))
                };
                if let Some(id) = parse_own_id(id.slice(params)).filter(listening) {
                    fail_request(self.demux.as_ref(), id, LinkError::Lost(LinkExit::Closed));
                }
            }
        }
    }

    /// Handles `subscriptions/acknowledged`: the server lists the accepted changes.
    fn handle_acknowledged(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::field(params, "_meta").and_then(|meta| {
            let meta = meta.slice(params);
            parse_own_id(object::field(meta, meta::SUBSCRIPTION_ID)?.slice(meta))
        });
        let acknowledge = id.and_then(|id| {
            self.demux
                .with_pending(|requests| requests.take_acknowledge(id))
        });
        match acknowledge {
            Some(acknowledge) => {
                let accepted = object::field(params, "notifications").map(|at| at.slice(params));
                let _ = acknowledge.send(Bytes::copy_from_slice(accepted.unwrap_or(b"{}")));
            }
            None => DemuxCounters::increment(&self.demux.counters().late),
        }
    }

    /// Emits an event about a resource or task, for all subscribers.
    fn emit_keyed_event(&self, key: &str, event: impl FnOnce(Arc<str>, Bytes) -> LinkEvent) {
        let params = self.message.params().unwrap_or_default();
        match object::text_field(params, key) {
            Some(name) => self.emit_event(|notification| event(name.as_ref().into(), notification)),
            None => DemuxCounters::increment(&self.demux.counters().dropped),
        }
    }

    /// Handles `elicitation/complete`: notifies the session of the user.
    fn handle_elicitation_complete(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::text_field(params, "elicitationId");
        let found = self.demux.with_pending(|requests| {
            let session = requests
                .server_requests
                .session_for_elicitation(id.as_deref()?)?;
            Some((session, requests.newest_client(session)))
        });
        match found {
            Some((_, Some(caller))) => caller.notify(Bytes::copy_from_slice(self.message.bytes())),
            Some((session, None)) => {
                self.emit_event(|notification| LinkEvent::SessionNotification {
                    session,
                    notification,
                })
            }
            None => DemuxCounters::increment(&self.demux.counters().dropped),
        }
    }

    /// Forwards a notification to the only possible session; otherwise emits an
    /// event.
    fn notify_client_or_emit(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        match self
            .demux
            .with_pending(|requests| requests.find_recipient(self.via))
        {
            Recipient::Client { caller, .. } => {
                caller.notify(Bytes::copy_from_slice(self.message.bytes()))
            }
            Recipient::Ambiguous | Recipient::NoClient => self.emit_event(event),
        }
    }

    fn emit_event(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        let bytes = self.message.bytes();
        // Copied, so the event does not keep the whole read buffer alive.
        let passed = bytes.len() <= EVENT_BYTES_MAX
            && self.events.try_emit(|| event(strip_subscription_id(bytes)));
        if !passed {
            DemuxCounters::increment(&self.demux.counters().dropped);
        }
    }
}

/// Removes our subscription id from a notification.
fn strip_subscription_id(notification: &[u8]) -> Bytes {
    let meta = object::field(notification, "params").and_then(|params| {
        let meta = object::field(params.slice(notification), "_meta")?;
        Some(meta.shift(params.start))
    });
    let mut editor = ObjectEditor::new(notification);
    if let Some(meta) = meta {
        editor.retain(meta, |key, _| key != meta::SUBSCRIPTION_ID.as_bytes());
    }
    editor.finish().into()
}
