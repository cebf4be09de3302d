//! Discovers whether an HTTP server is modern, and classifies refusals.

use std::pin::pin;
use std::sync::Arc;

use bowline_core::call::ServerResponse;
use bowline_core::pending_table::SendState;
use bowline_runtime::timer;
use bowline_wire::mcp::{Revision, code};
use bowline_wire::object;
use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::conversation::HttpConversation;
use super::http_session::{SESSION_ID, SessionHeaders};
use super::pending_guard::HttpPendingGuard;
use super::post_request::{PostError, RETRY_DELAYS};
use super::sender::RequestKind;
use super::status_error;
use crate::link::LinkError;
use crate::modern::era_discovery::{self, DiscoverOutcome};

impl HttpConversation {
    /// Sends `server/discover`, with retries of transient failures within the deadline.
    pub(super) async fn discover_era(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<DiscoverOutcome, LinkError> {
        let outcome = timeout_at(deadline, self.retry_discover(deadline)).await;
        outcome.unwrap_or(Err(LinkError::Timeout {
            sent: SendState::MaybeSent,
        }))
    }

    async fn retry_discover(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<DiscoverOutcome, LinkError> {
        let mut delays = RETRY_DELAYS.iter();
        let mut refused = false;
        loop {
            let mut session = None;
            let response = self.send_discover(deadline, &mut session).await;
            let error = match classify_discover(&response) {
                Some(DiscoverOutcome::Legacy) => {
                    if session.is_some() {
                        let headers = SessionHeaders::new(session, Revision::LATEST_LEGACY);
                        self.session.send_replace(Arc::new(headers));
                    }
                    return Ok(DiscoverOutcome::Legacy);
                }
                // The server refuses a revision from the supported list: perhaps
                // starting.
                Some(DiscoverOutcome::Refused { code, .. })
                    if is_version_error(code) && !refused =>
                {
                    refused = true;
                    continue;
                }
                Some(outcome) => return Ok(outcome),
                None => response.err().unwrap_or(crate::demux::LINK_GONE),
            };
            match delays.next() {
                Some(delay) if status_error::is_transient(&error) => sleep(*delay).await,
                _ if can_be_legacy(&error) => return Ok(DiscoverOutcome::Legacy),
                _ => return Err(error),
            }
        }
    }

    /// Ends an unrequested session: some servers open a session for any request.
    pub(super) async fn end_stray_session(self: Arc<Self>) {
        let headers = Arc::clone(&self.session.borrow());
        if headers.id.is_some() {
            let limit = self.spec.limits.stop_timeout;
            let sending = self.send_to_endpoint(
                &headers,
                None,
                &RequestKind::Delete,
                timer::deadline_after(limit),
            );
            // After a refusal, the server expires the session by itself.
            let _ = timeout(limit, sending).await;
        }
    }

    async fn send_discover(
        self: &Arc<Self>,
        deadline: Instant,
        session: &mut Option<HeaderValue>,
    ) -> Result<ServerResponse, LinkError> {
        let request = era_discovery::discover_request(&self.client, deadline);
        let (id, mut receiver) = self.register_request(&request, usize::MAX)?;
        let mut waiting = HttpPendingGuard::new(self, id);
        let kind = self.request_kind(id, request)?;
        let headers = Arc::clone(&self.session.borrow());
        let carrying = async {
            let response = self
                .send_to_endpoint(&headers, Some(id), &kind, deadline)
                .await?;
            let named = response.headers.get(&SESSION_ID);
            *session = named.and_then(|id| HeaderValue::from_bytes(id).ok());
            // A server without this method may fail with 500; the era is then known.
            let is_failure = response.status == StatusCode::INTERNAL_SERVER_ERROR;
            if status_error::is_decisive(response.status) && !is_failure {
                return Box::pin(self.read_refusal(response, id)).await;
            }
            match self.read_response(response, &headers, id, deadline).await {
                Ok(()) => Ok(()),
                Err(PostError::Link(error)) => Err(error),
                Err(PostError::SessionExpired) => Err(LinkError::BadResponse("no session".into())),
            }
        };
        let carrying = pin!(carrying);
        let outcome = self
            .drive_exchange(id, &mut receiver, deadline, carrying)
            .await;
        waiting.settle(outcome, &mut receiver)
    }
}

/// Classifies the outcome of `server/discover`; `None` for an inconclusive failure worth a
/// retry.
pub(super) fn classify_discover(
    response: &Result<ServerResponse, LinkError>,
) -> Option<DiscoverOutcome> {
    match response {
        Ok(response) => Some(era_discovery::parse_discover_response(response)),
        Err(error) if can_be_legacy(error) && !status_error::is_transient(error) => {
            Some(DiscoverOutcome::Legacy)
        }
        Err(_) => None,
    }
}

/// Whether this failure can come from a legacy server. An unreachable or overloaded server, or
/// missing credentials, tell nothing about the era.
const fn can_be_legacy(error: &LinkError) -> bool {
    match error {
        LinkError::Http { status, .. } => !matches!(*status, 408 | 429 | 502 | 503 | 504),
        LinkError::ContentType { .. } | LinkError::BadResponse(_) => true,
        _ => false,
    }
}

/// Whether a modern server rejects the protocol revision.
const fn is_version_error(code: i64) -> bool {
    code == code::UNSUPPORTED_VERSION
}

/// Whether a message is an error of modern servers only.
pub(super) fn is_modern_error(message: &[u8]) -> bool {
    let error = object::field(message, "error").map_or(&b""[..], |at| at.slice(message));
    let code = object::field(error, "code").and_then(|at| {
        let digits = std::str::from_utf8(at.slice(error)).ok()?;
        digits.parse().ok()
    });
    code.is_some_and(era_discovery::is_modern_error_code)
}
