//! Guard of a pending HTTP request.

use bowline_core::call::ServerResponse;
use bowline_core::pending_table::SendState;

use super::conversation::{HttpConversation, HttpMode, strip_newline};
use crate::demux::{self, Demux, DemuxCounters, ResponseReceiver};
use crate::link::LinkError;
use crate::rpc;

/// Guard of a pending request; dropping it early cancels the request.
#[derive(Debug)]
pub(super) struct HttpPendingGuard<'a> {
    conversation: &'a HttpConversation,
    /// Absent after the wait.
    id: Option<u64>,
    /// Whether to send a cancel to the server; never for the handshake.
    sends_cancel: bool,
}

impl<'a> HttpPendingGuard<'a> {
    pub(super) const fn new(conversation: &'a HttpConversation, id: u64) -> Self {
        let sends_cancel = match conversation.mode {
            HttpMode::Streamable | HttpMode::Sse => true,
            // Closing the stream cancels the request.
            HttpMode::Stateless => false,
        };
        Self {
            conversation,
            id: Some(id),
            sends_cancel,
        }
    }

    /// Returns the guard of a handshake request.
    pub(super) const fn for_handshake(conversation: &'a HttpConversation, id: u64) -> Self {
        Self {
            conversation,
            id: Some(id),
            sends_cancel: false,
        }
    }

    /// Returns the request id; 0 after the wait.
    pub(super) fn id(&self) -> u64 {
        self.id.unwrap_or_default()
    }

    /// Ends the wait with its outcome.
    pub(super) fn settle(
        &mut self,
        outcome: Option<Result<ServerResponse, LinkError>>,
        response: &mut ResponseReceiver,
    ) -> Result<ServerResponse, LinkError> {
        match outcome {
            Some(Ok(response)) => {
                self.id = None;
                Ok(response)
            }
            // The server may continue a request whose connection was lost.
            Some(Err(error @ (LinkError::Lost(_) | LinkError::ConnectionLost(_)))) => {
                match self.abandon("the connection was lost") {
                    Some(_) => Err(error),
                    None => response.try_recv().unwrap_or(Err(error)),
                }
            }
            Some(Err(error)) => match self.remove_pending() {
                Some(_) => Err(error),
                None => response.try_recv().unwrap_or(Err(error)),
            },
            None => match self.abandon("the request timed out") {
                Some(sent) => Err(LinkError::Timeout { sent }),
                // The response arrived at the same moment.
                None => response.try_recv().unwrap_or(Err(demux::LINK_GONE)),
            },
        }
    }

    /// Ends the wait, and sends a cancel if the server may have the request.
    fn abandon(&mut self, reason: &'static str) -> Option<SendState> {
        let (id, send_state) = self.remove_pending()?;
        if send_state == SendState::MaybeSent && self.sends_cancel {
            let mut line = Vec::new();
            rpc::write_cancelled(&mut line, id, reason);
            if self.conversation.queue_post(strip_newline(line)).is_err() {
                DemuxCounters::increment(&self.conversation.counters().dropped);
            }
        }
        Some(send_state)
    }

    /// Removes the pending request and cancels its server requests.
    fn remove_pending(&mut self) -> Option<(u64, SendState)> {
        let id = self.id.take()?;
        let (send_state, orphaned) = self
            .conversation
            .with_pending(|requests| requests.abandon_request(id))?;
        for server_request in orphaned {
            server_request.cancel();
        }
        Some((id, send_state))
    }
}

impl Drop for HttpPendingGuard<'_> {
    fn drop(&mut self) {
        self.abandon("the caller took the request back");
    }
}
