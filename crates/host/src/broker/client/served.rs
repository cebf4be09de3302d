//! What comes in that is not an answer, and the line over which it is dealt with.

use std::fmt;
use std::sync::Arc;

use bowline_link::websocket::Ended;
use bowline_wire::broker::{Frame, Letter, Refusal, Request, SessionEvent};
use bytes::Bytes;
use tokio::time::Instant;

use super::super::asking::Asked;
use super::connection::{Connection, DeliverError};

/// Takes what a hub asks of us. Called by the reader of the connection, so nothing here may wait;
/// how much can be in hand at once is bounded by the hub.
pub trait Served: fmt::Debug + Send + Sync {
    /// A message of the mailbox that answers no errand of this client. It is ours until it is
    /// acknowledged over a line, or the connection ends.
    fn message(&self, letter: Letter, line: &Line);

    /// A live request.
    fn request(&self, request: Request, line: &Line);

    /// Nobody waits any more for what a request asked for: one of this mailbox, or of the hub's own
    /// where none is named.
    fn cancel(&self, of: Option<&Arc<str>>, correlation_id: &Arc<str>, line: &Line);

    /// What became of a session for which a server of ours was asked.
    fn session(&self, server: &Arc<str>, session: &Arc<str>, event: SessionEvent) {
        let _ = (server, session, event);
    }

    /// The hub refused something that nobody waits for, such as an offer.
    fn refused(&self, refusal: &Refusal) {
        let _ = refusal;
    }

    /// A connection is over: what came over it and was not acknowledged comes again.
    fn ended(&self, line: &Line) {
        let _ = line;
    }
}

/// One connection while it lasts, for whoever serves over it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Line(pub(super) Arc<Connection>);

impl Line {
    /// Returns which connection it is, counted from one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// Returns our mailbox.
    #[must_use]
    pub fn mailbox(&self) -> &Arc<str> {
        &self.0.mailbox
    }

    /// Sends a frame; waits while too much waits to be written.
    ///
    /// # Errors
    /// The connection is over.
    pub async fn send(&self, frame: &Frame) -> Result<(), Ended> {
        self.0.outgoing.send(frame.to_bytes()).await
    }

    /// Sends a frame if there is room now; gives its bytes back where there is none.
    ///
    /// # Errors
    /// There is no room, or the connection is over.
    pub fn try_send(&self, frame: &Frame) -> Result<(), Bytes> {
        self.0.outgoing.try_send(frame.to_bytes())
    }

    /// Hands a message over to be stored, and waits for its receipt.
    ///
    /// # Errors
    /// There is no receipt.
    pub async fn deliver(
        &self,
        to: &Arc<str>,
        letter: Letter,
        deadline: Instant,
    ) -> Result<(), DeliverError> {
        self.0.deliver(to, letter, deadline).await
    }

    /// Returns what our servers ask over it.
    pub(in crate::broker) fn asked(&self) -> &Asked {
        &self.0.asked
    }

    /// Waits for the end of the connection.
    pub async fn over(&self) -> Ended {
        self.0.outgoing.over().await
    }
}
