//! The first words with a server that may keep no sessions, and what a refusal says of it.

use std::pin::pin;
use std::sync::Arc;

use bowline_core::pending::Sent;
use tokio::time::{Instant, sleep, timeout_at};

use super::carry::{TRIES_AFTER, Trouble};
use super::refusal;
use super::talk::Talk;
use super::waiting::Waiting;
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
        loop {
            let error = match self.ask(deadline).await {
                Ok(answer) => return Ok(discover::read(&answer)),
                Err(error) => error,
            };
            match delays.next() {
                Some(delay) if refusal::is_transient(&error) => sleep(*delay).await,
                _ if is_unknown(&error) => return Ok(Found::Legacy),
                _ => return Err(error),
            }
        }
    }

    async fn ask(self: &Arc<Self>, deadline: Instant) -> Result<Answer, LinkError> {
        let request = discover::request(&self.client, deadline);
        let (id, mut answer) = self.register(&request, usize::MAX)?;
        let mut waiting = Waiting::new(self, id);
        let verb = self.verb(id, request)?;
        let held = Arc::clone(&self.session.borrow());
        let carrying = async {
            let response = self.send(&held, Some(id), &verb, deadline).await?;
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

/// Whether a server that fails so may know nothing of the question, but answer another one. One
/// that cannot be reached, is overloaded or wants to know who we are, says nothing of itself.
const fn is_unknown(error: &LinkError) -> bool {
    match error {
        LinkError::Http { status, .. } => !matches!(*status, 408 | 429 | 502 | 503 | 504),
        LinkError::ContentType { .. } | LinkError::BadAnswer(_) => true,
        _ => false,
    }
}
