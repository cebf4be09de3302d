//! Errands that are stored before they are carried out, and outlive connections.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::error::Execution;
use bowline_core::hex::hex;
use bowline_core::mailbox::HUB;
use bowline_core::sync::lock;
use bowline_wire::broker::{Answer, Draft, Frame, Letter, REPLY, REQUEST};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::super::{Errand, ErrandError};
use super::connection::DeliverError;
use super::errand::{Patience, refused};
use super::served::Line;
use super::{Shared, State};

/// Stored errands that may wait at once.
const STORED_MAX: usize = 65_536;

/// Peers that were asked and are remembered; late replies of others become dead letters.
const ASKED_PEERS_MAX: usize = 1_024;

/// How long a receipt may take.
const RECEIPT_WAIT: Duration = Duration::from_secs(30);

/// What the ids of our requests begin with, so that their replies are known to be ours.
const NAMESPACE: &str = "broker-mcp-";

/// Who waits for the reply to a stored request.
#[derive(Debug)]
pub(super) struct Stored {
    /// The mailbox that is to reply.
    to: Arc<str>,
    answer: oneshot::Sender<Answer>,
    sink: Option<Arc<dyn CallerEnd>>,
}

impl Shared {
    /// Has a request stored under one id, over as many connections as it takes, and waits for its
    /// reply.
    pub(super) async fn store(
        &self,
        to: Option<&Arc<str>>,
        errand: Errand,
    ) -> Result<Answer, ErrandError> {
        let to = to.map_or_else(|| HUB.into(), Arc::clone);
        let (mut waiting, mut answer) = self.expect(to, errand.sink.clone())?;
        let mut body = Vec::new();
        errand.ask.write(&mut body);
        let mut after = 0;
        loop {
            let patience = match waiting.sent {
                true => Patience::Deadline,
                false => Patience::Round,
            };
            let connection = tokio::select! {
                biased;
                answer = &mut answer => return answered(answer),
                connection = self.connected(after, errand.deadline, patience) => connection,
            };
            let connection = connection.map_err(|error| waiting.judged(error))?;
            after = connection.generation;
            let deadline = self.deadline(errand.deadline);
            let letter = Letter::new(&Draft {
                id: &waiting.id,
                kind: REQUEST,
                body: &body,
                correlation_id: None,
                ttl_ms: Some(deadline.ttl_ms),
                created_at_ms: self.options.clock.unix_ms(),
            });
            let now = self.options.clock.now();
            let receipt_by = errand.deadline.min(now.plus(RECEIPT_WAIT));
            let at = self.options.clock.instant(receipt_by);
            let before = waiting.sent;
            // Taken for sent while it is handed over: whoever leaves then must take it back.
            waiting.sent = true;
            let receipt = tokio::select! {
                biased;
                answer = &mut answer => return answered(answer),
                receipt = connection.deliver(&waiting.to, letter, at) => receipt,
            };
            match receipt {
                Ok(()) => break,
                Err(DeliverError::NotSent(_)) => waiting.sent = before,
                Err(DeliverError::Lost(_)) => {}
                Err(DeliverError::Timeout) if receipt_by < errand.deadline => {
                    return Err(ErrandError::Lost("the broker gave no receipt".into()));
                }
                Err(DeliverError::Timeout) => {
                    return Err(ErrandError::Timeout(Execution::Unknown));
                }
                Err(DeliverError::Refused(refusal)) => {
                    // Nothing was stored now, so there is nothing to take back; but where it had
                    // been sent before, that one may have been taken.
                    waiting.sent = before;
                    let execution = match before {
                        true => Execution::Unknown,
                        false => Execution::NotStarted,
                    };
                    return Err(refused(&refusal, execution));
                }
            }
        }
        let at = self.options.clock.instant(errand.deadline);
        tokio::select! {
            biased;
            answer = timeout_at(at, answer) => match answer {
                Ok(answer) => answered(answer),
                Err(_) => Err(ErrandError::Timeout(Execution::Unknown)),
            },
            reason = self.over() => Err(ErrandError::Lost(reason)),
        }
    }

    /// Begins to wait for a reply.
    fn expect(
        &self,
        to: Arc<str>,
        sink: Option<Arc<dyn CallerEnd>>,
    ) -> Result<(Waiting<'_>, oneshot::Receiver<Answer>), ErrandError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| ErrandError::NotSent(error.to_string().into()))?;
        let id: Arc<str> = format!("{NAMESPACE}{}", hex(&random)).into();
        {
            let mut asked = lock(&self.asked_peers);
            if *to != *HUB && asked.len() < ASKED_PEERS_MAX {
                asked.insert(Arc::clone(&to));
            }
        }
        let (answer, answered) = oneshot::channel();
        let mut stored = lock(&self.stored);
        if stored.len() >= STORED_MAX {
            return Err(ErrandError::NotSent("too many requests wait".into()));
        }
        stored.insert(
            Arc::clone(&id),
            Stored {
                to: Arc::clone(&to),
                answer,
                sink,
            },
        );
        drop(stored);
        let waiting = Waiting {
            shared: self,
            id,
            to,
            sent: false,
        };
        Ok((waiting, answered))
    }

    /// Takes a message: the reply of somebody who waits, or what others deal with. What is nobody's
    /// becomes a dead letter, so that it is neither lost nor in the way of the next.
    pub(super) fn letter(&self, letter: Letter, line: &Line) {
        if *letter.kind == *REPLY {
            match self.reply(&letter) {
                Ok(()) => {
                    let id = Arc::clone(&letter.id);
                    // One that does not get through comes again after the next connect.
                    let _ = line.try_send(&Frame::Ack { id });
                }
                Err(reason) => bury(&letter, reason, line),
            }
        } else if let Some(served) = &self.served {
            served.message(letter, line);
        } else {
            bury(&letter, "nobody here takes such messages", line);
        }
    }

    /// Gives a reply to whoever waits for it, or says why it is not one.
    fn reply(&self, letter: &Letter) -> Result<(), &'static str> {
        let id = letter.correlation_id.clone().unwrap_or_default();
        let from = letter.from.as_ref().map(|from| &*from.session_id);
        let asked = lock(&self.stored)
            .get(&id)
            .map(|waiter| Arc::clone(&waiter.to));
        match asked {
            // The hub itself says that a request to a peer is past its time.
            Some(to) if from != Some(&*to) && from != Some(HUB) => {
                Err("a reply of somebody who was not asked")
            }
            // Read before it is acknowledged.
            Some(_) => match Answer::read(&letter.body) {
                Ok(answer) => {
                    if let Some(waiter) = lock(&self.stored).remove(&id) {
                        let _ = waiter.answer.send(answer);
                    }
                    Ok(())
                }
                Err(_) => Err("a reply that cannot be read"),
            },
            // Ours, of a request that was given up: waiters stand here before requests leave.
            None if id.starts_with(NAMESPACE) && from.is_some_and(|from| self.was_asked(from)) => {
                Ok(())
            }
            None => Err("a reply to nothing that was asked"),
        }
    }

    /// Whether somebody may answer a request that was given up: the hub, or a peer that was asked.
    fn was_asked(&self, from: &str) -> bool {
        from == HUB || lock(&self.asked_peers).contains(from)
    }

    /// Returns who hears what the tool of a stored request says.
    pub(super) fn stored_sink(&self, id: &str) -> Option<Arc<dyn CallerEnd>> {
        lock(&self.stored).get(id)?.sink.clone()
    }

    /// Waits until the client does not come back.
    async fn over(&self) -> Arc<str> {
        let mut ticks = self.ticks.subscribe();
        loop {
            if let State::Over(error) = &self.snapshot.load().state {
                return error.whole();
            }
            if ticks.changed().await.is_err() {
                return "the client is closed".into();
            }
        }
    }
}

/// Hands a message back for good.
fn bury(letter: &Letter, reason: &'static str, line: &Line) {
    tracing::warn!(message = %letter.id, kind = %letter.kind, reason, "a message is buried");
    let _ = line.try_send(&Frame::Nak {
        id: Arc::clone(&letter.id),
        delay_ms: 0,
        dead: Some(reason.into()),
    });
}

fn answered(answer: Result<Answer, oneshot::error::RecvError>) -> Result<Answer, ErrandError> {
    answer.map_err(|_| ErrandError::Lost("the client is closed".into()))
}

/// Somebody waits for a reply; dropped unanswered, the hub is told.
#[derive(Debug)]
struct Waiting<'a> {
    shared: &'a Shared,
    id: Arc<str>,
    to: Arc<str>,
    /// Whether it may have been stored.
    sent: bool,
}

impl Waiting<'_> {
    /// Says what is known of a request that found no further connection.
    fn judged(&self, error: ErrandError) -> ErrandError {
        match error {
            ErrandError::Timeout(_) if self.sent => ErrandError::Timeout(Execution::Unknown),
            ErrandError::NotSent(reason) if self.sent => ErrandError::Lost(reason),
            error => error,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = lock(&self.shared.stored).remove(&self.id);
        if left.is_none() || !self.sent {
            return;
        }
        let snapshot = self.shared.snapshot.load_full();
        if let State::Up(connection) = &snapshot.state {
            connection.cancel(Some(Arc::clone(&self.to)), Arc::clone(&self.id));
        }
    }
}
