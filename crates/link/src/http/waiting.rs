//! The wait of one caller for its answer.

use bowline_core::pending::Sent;

use super::talk::{Form, Talk, message};
use crate::desk::{self, Counts, Desk, Receiver};
use crate::link::{Answer, LinkError};
use crate::peer::frame;

/// The wait of one caller; dropped early, it takes the request back.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    talk: &'a Talk,
    /// Absent when the wait is over.
    id: Option<u64>,
    /// Whether the server is told: the handshake must not be taken back.
    cancels: bool,
}

impl<'a> Waiting<'a> {
    pub(super) const fn new(talk: &'a Talk, id: u64) -> Self {
        let cancels = match talk.form {
            Form::Streamable | Form::Sse => true,
            // The end of its stream says it.
            Form::Stateless => false,
        };
        Self {
            talk,
            id: Some(id),
            cancels,
        }
    }

    /// The wait for the answer to the first words.
    pub(super) const fn handshake(talk: &'a Talk, id: u64) -> Self {
        Self {
            talk,
            id: Some(id),
            cancels: false,
        }
    }

    /// Returns the id of the request; 0 when the wait is over.
    pub(super) fn id(&self) -> u64 {
        self.id.unwrap_or_default()
    }

    /// Ends the wait with what came of it.
    pub(super) fn settle(
        &mut self,
        outcome: Option<Result<Answer, LinkError>>,
        answer: &mut Receiver,
    ) -> Result<Answer, LinkError> {
        match outcome {
            Some(Ok(answer)) => {
                self.id = None;
                Ok(answer)
            }
            // The server may go on with a request whose connection was lost.
            Some(Err(error @ (LinkError::Lost(_) | LinkError::Cut(_)))) => {
                match self.give_up("the connection was lost") {
                    Some(_) => Err(error),
                    None => answer.try_recv().unwrap_or(Err(error)),
                }
            }
            Some(Err(error)) => match self.forget() {
                Some(_) => Err(error),
                None => answer.try_recv().unwrap_or(Err(error)),
            },
            None => match self.give_up("the request timed out") {
                Some(sent) => Err(LinkError::Timeout { sent }),
                // It was answered in the same moment.
                None => answer.try_recv().unwrap_or(Err(desk::GONE)),
            },
        }
    }

    /// Ends the wait, and tells a server that may have the request.
    fn give_up(&mut self, reason: &'static str) -> Option<Sent> {
        let (id, sent) = self.forget()?;
        if sent == Sent::Perhaps && self.cancels {
            let mut line = Vec::new();
            frame::write_cancelled(&mut line, id, reason);
            if self.talk.post_later(message(line)).is_err() {
                Counts::add(&self.talk.counts().dropped);
            }
        }
        Some(sent)
    }

    /// Ends the wait without a word.
    fn forget(&mut self) -> Option<(u64, Sent)> {
        let id = self.id.take()?;
        let (sent, unasked) = self.talk.with(|waiters| waiters.give_up(id))?;
        for question in unasked {
            question.withdraw();
        }
        Some((id, sent))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.give_up("the caller took the request back");
    }
}
