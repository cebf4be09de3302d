//! The first words with a server that may keep no sessions, and what a refusal says of it.

use std::pin::pin;
use std::sync::Arc;

use bowline_core::pending::Sent;
use bowline_wire::mcp::{Revision, code};
use bowline_wire::object;
use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::carry::{TRIES_AFTER, Trouble};
use super::road::Verb;
use super::session::{Held, SESSION_ID};
use super::talk::Talk;
use super::waiting::Waiting;
use super::{clock, refusal};
use crate::link::{Answer, LinkError};
use crate::modern::discover::{self, Found};

impl Talk {
    /// Asks the server whether it speaks without sessions; what fails by chance is tried again
    /// within the deadline.
    pub(super) async fn discover(self: &Arc<Self>, deadline: Instant) -> Result<Found, LinkError> {
        let found = timeout_at(deadline, self.try_to_discover(deadline)).await;
        found.unwrap_or(Err(LinkError::Timeout {
            sent: Sent::Perhaps,
        }))
    }

    async fn try_to_discover(self: &Arc<Self>, deadline: Instant) -> Result<Found, LinkError> {
        let mut delays = TRIES_AFTER.iter();
        let mut refused = false;
        loop {
            let mut session = None;
            let answer = self.ask(deadline, &mut session).await;
            let error = match found(&answer) {
                Some(Found::Legacy) => {
                    if session.is_some() {
                        let held = Held::new(session, Revision::LATEST_LEGACY);
                        self.session.send_replace(Arc::new(held));
                    }
                    return Ok(Found::Legacy);
                }
                // It names a revision that we ask in: perhaps it was not itself yet.
                Some(Found::Refused { code, .. }) if is_revision(code) && !refused => {
                    refused = true;
                    continue;
                }
                Some(found) => return Ok(found),
                None => answer.err().unwrap_or(crate::desk::GONE),
            };
            match delays.next() {
                Some(delay) if refusal::is_transient(&error) => sleep(*delay).await,
                _ if is_unknown(&error) => return Ok(Found::Legacy),
                _ => return Err(error),
            }
        }
    }

    /// Ends a session that nobody asked for: some servers open one for whatever they are sent.
    pub(super) async fn leave(self: Arc<Self>) {
        let held = Arc::clone(&self.session.borrow());
        if held.id.is_some() {
            let limit = self.spec.limits.stop;
            let sending = self.send(&held, None, &Verb::Delete, clock::after(limit));
            // A server may refuse it; then it forgets the session by itself.
            let _ = timeout(limit, sending).await;
        }
    }

    async fn ask(
        self: &Arc<Self>,
        deadline: Instant,
        session: &mut Option<HeaderValue>,
    ) -> Result<Answer, LinkError> {
        let request = discover::request(&self.client, deadline);
        let (id, mut answer) = self.register(&request, usize::MAX)?;
        let mut waiting = Waiting::new(self, id);
        let verb = self.verb(id, request)?;
        let held = Arc::clone(&self.session.borrow());
        let carrying = async {
            let response = self.send(&held, Some(id), &verb, deadline).await?;
            let named = response.headers.get(&SESSION_ID);
            *session = named.and_then(|id| HeaderValue::from_bytes(id).ok());
            // A server that does not know the question may fail at it; that answers it.
            let is_failure = response.status == StatusCode::INTERNAL_SERVER_ERROR;
            if refusal::is_decisive(response.status) && !is_failure {
                return Box::pin(self.refuse(response, id)).await;
            }
            match self.digest(response, &held, id, deadline).await {
                Ok(()) => Ok(()),
                Err(Trouble::Link(error)) => Err(error),
                Err(Trouble::Expired) => Err(LinkError::BadAnswer("no session".into())),
            }
        };
        let carrying = pin!(carrying);
        let outcome = self.exchange(id, &mut answer, deadline, carrying).await;
        waiting.settle(outcome, &mut answer)
    }
}

/// Returns what became of the question; nothing where it says nothing of the server yet, but
/// may at another try.
pub(super) fn found(answer: &Result<Answer, LinkError>) -> Option<Found> {
    match answer {
        Ok(answer) => Some(discover::read(answer)),
        Err(error) if is_unknown(error) && !refusal::is_transient(error) => Some(Found::Legacy),
        Err(_) => None,
    }
}

/// Whether a server that fails so may know nothing of the question, but answer another one. One
/// that cannot be reached, is overloaded or wants to know who we are, says nothing of itself.
const fn is_unknown(error: &LinkError) -> bool {
    match error {
        LinkError::Http { status, .. } => !matches!(*status, 408 | 429 | 502 | 503 | 504),
        LinkError::ContentType { .. } | LinkError::BadAnswer(_) => true,
        _ => false,
    }
}

/// Whether a server of the modern era refuses for the sake of the revision.
const fn is_revision(code: i64) -> bool {
    code == code::UNSUPPORTED_VERSION
}

/// Whether a message is an error that only a server without sessions gives.
pub(super) fn is_modern_error(message: &[u8]) -> bool {
    let error = object::field(message, "error").map_or(&b""[..], |at| at.of(message));
    let code = object::field(error, "code").and_then(|at| {
        let digits = std::str::from_utf8(at.of(error)).ok()?;
        digits.parse().ok()
    });
    code.is_some_and(discover::is_modern)
}
