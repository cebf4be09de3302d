//! Makes a connection, and reads what comes over it.

use std::sync::Arc;

use bowline_core::error::Execution;
use bowline_link::websocket::{self, Ended, Incoming};
use bowline_wire::broker::{Answer, Ask, Frame, FrameError, Hello, Refusal, Welcome};
use bytes::Bytes;
use tokio::time::Instant;

use super::super::{ErrandError, Manifest};
use super::connection::{Connection, Deadline, End};
use super::errand::refused;
use super::{ConnectError, Shared};
use crate::broker::client::served::Line;

/// The close code of a connection whose place another peer took.
const FENCED: u16 = 4001;

/// The word for the same.
const FENCED_WORD: &str = "fenced";

/// The close code of a normal end.
pub(super) const DONE: u16 = 1000;

impl Shared {
    /// Dials, is let in, subscribes, and asks what there is.
    pub(super) async fn open(
        self: &Arc<Self>,
        generation: u64,
    ) -> Result<(Arc<Connection>, Arc<Manifest>), ConnectError> {
        let now = self.options.clock.now();
        let until = now.plus(self.options.connect_timeout);
        let at = self.options.clock.instant(until);
        let opened = tokio::time::timeout_at(at, self.greet(generation, at)).await;
        let (connection, incoming) = opened.map_err(|_| ConnectError::Timeout)??;
        let hangup = Hangup(Some(Arc::clone(&connection)));
        let shared = Arc::clone(self);
        let reading = Arc::clone(&connection);
        self.options.tasks.spawn("broker reader", async move {
            shared.read(reading, incoming).await;
        });
        let subscribe = Frame::Subscribe.to_bytes();
        connection.outgoing.send(subscribe).await?;
        let manifest = match self.options.wants_manifest {
            true => self.fetch(&connection, self.deadline(until)).await?,
            false => Arc::default(),
        };
        hangup.keep();
        Ok((connection, manifest))
    }

    /// Says who we are and waits to be let in.
    async fn greet(
        &self,
        generation: u64,
        at: Instant,
    ) -> Result<(Arc<Connection>, Incoming), ConnectError> {
        let token = self.credential.read();
        let token = token.map_err(|error| ConnectError::Credential(error.to_string().into()))?;
        let token = token.trim();
        let (outgoing, mut incoming) = websocket::dial(
            &self.endpoint,
            Some(token),
            at,
            self.options.socket,
            &self.options.tasks,
        )
        .await?;
        let hello = Frame::Hello(Hello {
            session_id: self.options.part.clone().unwrap_or_default(),
            token: Some(token.into()),
            instance: Some(Arc::clone(&self.instance)),
            ..Hello::default()
        });
        outgoing.send(hello.to_bytes()).await?;
        let welcome = welcome(&mut incoming).await?;
        let tasks = &self.options.tasks;
        let connection = Connection::new(generation, &welcome, outgoing, tasks);
        Ok((Arc::new(connection), incoming))
    }

    /// Asks what the hub offers.
    pub(super) async fn fetch(
        &self,
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<Arc<Manifest>, ConnectError> {
        let mut body = Vec::new();
        Ask::Manifest.write(&mut body);
        let answered = connection.live((None, body.into()), deadline, None).await;
        let body = answered.map_err(|error| match connection.over() {
            Some(End {
                reason,
                fenced: true,
            }) => ConnectError::Fenced(reason),
            _ => unlisted(&error),
        })?;
        match Answer::read(&body) {
            Ok(Answer::Manifest { items, revision }) => Ok(Arc::new(Manifest {
                revision,
                items,
                // A hub offers tools.
                servers: Vec::new(),
            })),
            Ok(Answer::Failed(failure)) => Err(ConnectError::Manifest(failure.reason)),
            Ok(Answer::Rpc { .. } | Answer::Output { .. }) => {
                Err(ConnectError::Manifest("it answered something else".into()))
            }
            Err(error) => Err(ConnectError::Manifest(error.to_string().into())),
        }
    }

    /// Reads until the connection ends.
    async fn read(self: Arc<Self>, connection: Arc<Connection>, mut incoming: Incoming) {
        let line = Line(Arc::clone(&connection));
        let mut fenced = None;
        let ended = loop {
            match incoming.next().await {
                Ok(bytes) => match Frame::read(&bytes) {
                    Ok(Frame::Error(refusal)) if is_fencing(&refusal) => {
                        fenced = Some(refusal.reason);
                    }
                    Ok(frame) => self.take(&connection, &line, frame),
                    Err(error) => skipped(&error, &bytes),
                },
                Err(ended) => break ended,
            }
        };
        let told = matches!(&ended, Ended::Closed { code, .. } if *code == FENCED);
        connection.end(End {
            fenced: told || fenced.is_some(),
            reason: fenced.unwrap_or_else(|| ended.to_string().into()),
        });
        if let Some(served) = &self.served {
            served.ended(&line);
        }
    }

    /// Deals with one frame. Never waits: who reads must not depend on who writes.
    fn take(&self, connection: &Arc<Connection>, line: &Line, frame: Frame) {
        match frame {
            Frame::Response { id, body } => {
                if !connection.answered(&id, Ok(body)) {
                    tracing::trace!(%id, "an answer that nobody waits for");
                }
            }
            Frame::Event { id, notification } => {
                let sink = connection.sink(&id).or_else(|| self.stored_sink(&id));
                if let Some(sink) = sink {
                    sink.push(notification);
                }
            }
            Frame::Delivered { id } => {
                connection.receipt(&id, Ok(()));
            }
            Frame::Error(refusal) => self.refused(connection, &refusal),
            Frame::Message(letter) => self.letter(letter, line),
            Frame::Request(request) => {
                if let Some(served) = &self.served {
                    served.request(request, line);
                }
            }
            Frame::Cancel { to, correlation_id } => {
                if let Some(served) = &self.served {
                    served.cancel(to.as_ref(), &correlation_id, line);
                }
            }
            Frame::Changed { revision } => {
                connection.told.send_replace(revision);
            }
            Frame::Answer { id, number, answer } => {
                if !connection.asked.answered(&id, number, answer) {
                    tracing::trace!(%id, "an answer to nothing that is asked");
                }
            }
            Frame::Session {
                server,
                session,
                event,
            } => {
                if let Some(served) = &self.served {
                    served.session(&server, &session, event);
                }
            }
            Frame::Hello(_)
            | Frame::Welcome(_)
            | Frame::BrokerIdentity { .. }
            | Frame::Deliver { .. }
            | Frame::Subscribe
            | Frame::Ack { .. }
            | Frame::AckWithReceipt { .. }
            | Frame::AckResult { .. }
            | Frame::Nak { .. }
            | Frame::ListConnected { .. }
            | Frame::Connected { .. }
            | Frame::ListDead { .. }
            | Frame::Dead { .. }
            | Frame::Offer { .. }
            | Frame::Question { .. }
            | Frame::Withdraw { .. }
            | Frame::Lacks { .. }
            | Frame::Told { .. }
            | Frame::Other { .. } => {}
        }
    }

    fn refused(&self, connection: &Connection, refusal: &Refusal) {
        let waited = match &refusal.id {
            Some(id) => {
                connection.receipt(id, Err(refusal.clone()))
                    || connection.answered(id, Err(refused(refusal, Execution::NotStarted)))
            }
            None => false,
        };
        if !waited {
            tracing::warn!(reason = %refusal.reason, "the hub refused a frame");
            if let Some(served) = &self.served {
                served.refused(refusal);
            }
        }
    }

    /// Sends a frame that need not arrive on this connection: it is sent again on the next.
    pub(super) fn say(&self, connection: &Arc<Connection>, frame: &Frame) {
        let Err(frame) = connection.outgoing.try_send(frame.to_bytes()) else {
            return;
        };
        let outgoing = connection.outgoing.clone();
        self.options.tasks.spawn("broker send", async move {
            let _ = outgoing.send(frame).await;
        });
    }

    /// Returns a moment as a timer and as the other side wants it.
    pub(super) fn deadline(&self, at: bowline_core::time::Now) -> Deadline {
        let clock = &self.options.clock;
        Deadline {
            at: clock.instant(at),
            ttl_ms: at.millis_since(clock.now()),
        }
    }
}

/// Waits for `welcome`; what else comes before it is skipped.
async fn welcome(incoming: &mut Incoming) -> Result<Welcome, ConnectError> {
    loop {
        let bytes = incoming.next().await?;
        match Frame::read(&bytes) {
            Ok(Frame::Welcome(welcome)) => return Ok(welcome),
            Ok(Frame::Error(refusal)) if is_fencing(&refusal) => {
                return Err(ConnectError::Fenced(refusal.reason));
            }
            Ok(Frame::Error(refusal)) => return Err(ConnectError::Refused(refusal)),
            Ok(_) => {}
            Err(error) => skipped(&error, &bytes),
        }
    }
}

fn is_fencing(refusal: &Refusal) -> bool {
    refusal.id.is_none() && refusal.code.as_deref() == Some(FENCED_WORD)
}

fn skipped(error: &FrameError, bytes: &Bytes) {
    tracing::warn!(%error, bytes = bytes.len(), "skipped what is no frame");
}

fn unlisted(error: &ErrandError) -> ConnectError {
    match error {
        ErrandError::Timeout(Execution::NotStarted | Execution::Unknown | Execution::Completed) => {
            ConnectError::Timeout
        }
        ErrandError::NotSent(reason) | ErrandError::Lost(reason) => {
            ConnectError::Manifest(Arc::clone(reason))
        }
        ErrandError::Refused(failure) => ConnectError::Manifest(Arc::clone(&failure.reason)),
    }
}

/// Closes a connection that comes to nothing.
#[derive(Debug)]
struct Hangup(Option<Arc<Connection>>);

impl Hangup {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Hangup {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.outgoing.close(DONE, "");
        }
    }
}
