//! One connection to a hub, from the handshake to its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::error::Execution;
use bowline_core::pending::{Pending, Sent};
use bowline_core::sync::lock;
use bowline_link::websocket::{Ended, Outgoing};
use bowline_wire::broker::{Frame, Letter, Refusal, Request, Welcome};
use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::ErrandError;
use super::super::asking::Asked;
use crate::tasks::Tasks;

/// Messages whose receipts are awaited at once on one connection.
const RECEIPTS_MAX: usize = 65_536;

/// How long a last word may wait for room.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// One connection; what waits on it ends with it.
#[derive(Debug)]
pub(super) struct Connection {
    /// Which of the connections of its client it is.
    pub(super) generation: u64,
    /// The mailbox that the hub gave us.
    pub(super) mailbox: Arc<str>,
    /// The writing half.
    pub(super) outgoing: Outgoing,
    /// What our servers ask those for whom the hub asks us.
    pub(super) asked: Asked,
    /// The newest manifest that the hub told of.
    pub(super) told: watch::Sender<u64>,
    /// Who waits for what.
    table: std::sync::Mutex<Table>,
    /// Live requests that may be in flight.
    places: Semaphore,
    /// Whether it ended.
    done: watch::Sender<bool>,
    tasks: Tasks,
}

#[derive(Debug)]
struct Table {
    live: Pending<Live>,
    receipts: HashMap<Arc<str>, oneshot::Sender<Result<(), Refusal>>>,
    /// How it ended, once it has; nobody begins to wait after that.
    over: Option<End>,
}

/// An answer, or why there is none.
pub(super) type Answered = Result<Bytes, ErrandError>;

/// Who waits for a live answer.
#[derive(Debug)]
struct Live {
    answer: oneshot::Sender<Answered>,
    sink: Option<Arc<dyn CallerEnd>>,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// In one clause.
    pub(super) reason: Arc<str>,
    /// Whether another peer took our place.
    pub(super) fenced: bool,
}

/// Why a message has no receipt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliverError {
    /// It never left.
    #[error("it was not sent: {0}")]
    NotSent(Arc<str>),
    /// The connection was lost after it may have left.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// No receipt came in time.
    #[error("no receipt in time")]
    Timeout,
    /// The broker refused it, and stored nothing.
    #[error("the broker refused it: {}", .0.reason)]
    Refused(Refusal),
}

impl Connection {
    pub(super) fn new(
        generation: u64,
        welcome: &Welcome,
        outgoing: Outgoing,
        tasks: &Tasks,
    ) -> Self {
        let places = welcome.requests_max.clamp(1, Semaphore::MAX_PERMITS);
        let table = Table {
            live: Pending::new(places),
            receipts: HashMap::new(),
            over: None,
        };
        Self {
            generation,
            mailbox: Arc::clone(&welcome.mailbox),
            outgoing,
            asked: Asked::default(),
            told: watch::Sender::new(0),
            table: std::sync::Mutex::new(table),
            places: Semaphore::new(places),
            done: watch::Sender::new(false),
            tasks: tasks.clone(),
        }
    }

    /// Returns how it ended, once everybody who waited was told.
    pub(super) fn over(&self) -> Option<End> {
        lock(&self.table).over.clone()
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) -> End {
        // The sender is ours, so the channel cannot close under us.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
        self.over().unwrap_or_else(|| End {
            reason: "the connection is over".into(),
            fenced: false,
        })
    }

    /// Returns how many wait for live answers.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.table).live.len()
    }

    /// Sends a request to the hub, or over it to a peer, and waits for its answer. Dropped, it is
    /// taken back at the hub as well.
    pub(super) async fn live(
        &self,
        (to, body): (Option<Arc<str>>, Bytes),
        deadline: Deadline,
        sink: Option<Arc<dyn CallerEnd>>,
    ) -> Result<Bytes, ErrandError> {
        // Whoever waits for a place is told of the end as well: the places are closed then.
        let _place = match timeout_at(deadline.at, self.places.acquire()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(ErrandError::NotSent(self.why())),
            Err(_) => return Err(ErrandError::Timeout(Execution::NotStarted)),
        };
        let (waiting, answer) = self.wait(sink)?;
        let frame = Frame::Request(Request {
            id: itoa::Buffer::new().format(waiting.id).into(),
            to,
            body,
            ttl_ms: Some(deadline.ttl_ms),
            ..Request::default()
        });
        // Marked before it is handed over: between the two the connection may end.
        lock(&self.table).live.mark_sent(waiting.id);
        match timeout_at(deadline.at, self.outgoing.send(frame.to_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(ended)) => return Err(not_sent(&ended)),
            Err(_) => return Err(ErrandError::Timeout(Execution::NotStarted)),
        }
        match timeout_at(deadline.at, answer).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => Err(ErrandError::Lost("the connection is over".into())),
            Err(_) => Err(ErrandError::Timeout(Execution::Unknown)),
        }
    }

    /// Hands a message over to be stored and waits for its receipt.
    pub(super) async fn deliver(
        &self,
        to: &Arc<str>,
        letter: Letter,
        deadline: Instant,
    ) -> Result<(), DeliverError> {
        let (receipt, received) = oneshot::channel();
        let id = Arc::clone(&letter.id);
        {
            let mut table = lock(&self.table);
            if let Some(end) = &table.over {
                return Err(DeliverError::NotSent(Arc::clone(&end.reason)));
            }
            if table.receipts.len() >= RECEIPTS_MAX {
                return Err(DeliverError::NotSent("too many wait for receipts".into()));
            }
            table.receipts.insert(Arc::clone(&id), receipt);
        }
        let _awaited = Awaited {
            connection: self,
            id,
        };
        let to = Arc::clone(to);
        let frame = Frame::Deliver { to, letter }.to_bytes();
        match timeout_at(deadline, self.outgoing.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(ended)) => return Err(DeliverError::NotSent(ended.to_string().into())),
            Err(_) => return Err(DeliverError::NotSent("no room in time".into())),
        }
        match timeout_at(deadline, received).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(refusal))) => Err(DeliverError::Refused(refusal)),
            Ok(Err(_)) => Err(DeliverError::Lost(self.why())),
            Err(_) => Err(DeliverError::Timeout),
        }
    }

    /// Tells the hub that nobody waits any more; best effort, and never waits here.
    pub(super) fn cancel(&self, to: Option<Arc<str>>, correlation_id: Arc<str>) {
        let frame = Frame::Cancel { to, correlation_id }.to_bytes();
        let Err(frame) = self.outgoing.try_send(frame) else {
            return;
        };
        if self.over().is_some() || self.outgoing.ended().is_some() {
            return;
        }
        let outgoing = self.outgoing.clone();
        self.tasks.spawn("broker cancel", async move {
            let _ = timeout(CANCEL_WAIT, outgoing.send(frame)).await;
        });
    }

    /// Gives a live answer to whoever waits for it; `false` when nobody does.
    pub(super) fn answered(&self, id: &str, answer: Answered) -> bool {
        let taken = match id.parse() {
            Ok(id) => lock(&self.table).live.take(id),
            Err(_) => None,
        };
        match taken {
            // Whoever waited may have left just now.
            Some((waiter, _)) => waiter.answer.send(answer).is_ok(),
            None => false,
        }
    }

    /// Returns who hears what the tool of a live request says.
    pub(super) fn sink(&self, id: &str) -> Option<Arc<dyn CallerEnd>> {
        let table = lock(&self.table);
        table.live.get(id.parse().ok()?)?.sink.clone()
    }

    /// Gives a receipt, or a refusal, to whoever waits for it; `false` when nobody does.
    pub(super) fn receipt(&self, id: &str, receipt: Result<(), Refusal>) -> bool {
        let waiter = lock(&self.table).receipts.remove(id);
        waiter.is_some_and(|waiter| waiter.send(receipt).is_ok())
    }

    /// Ends every wait.
    pub(super) fn end(&self, end: End) {
        let reason = Arc::clone(&end.reason);
        let (live, receipts): (Vec<_>, _) = {
            let mut table = lock(&self.table);
            table.over.get_or_insert(end);
            let live = table.live.drain().collect();
            (live, std::mem::take(&mut table.receipts))
        };
        for (waiter, _) in live {
            let lost = ErrandError::Lost(Arc::clone(&reason));
            let _ = waiter.answer.send(Err(lost));
        }
        drop(receipts);
        self.asked.end();
        self.places.close();
        self.done.send_replace(true);
    }

    fn why(&self) -> Arc<str> {
        self.over()
            .map_or_else(|| "the connection is over".into(), |end| end.reason)
    }

    fn wait(
        &self,
        sink: Option<Arc<dyn CallerEnd>>,
    ) -> Result<(Waiting<'_>, oneshot::Receiver<Answered>), ErrandError> {
        let (answer, answered) = oneshot::channel();
        let mut table = lock(&self.table);
        if let Some(end) = &table.over {
            return Err(ErrandError::NotSent(Arc::clone(&end.reason)));
        }
        let id = table.live.register(Live { answer, sink });
        let id = id.map_err(|_| ErrandError::NotSent("too many requests wait".into()))?;
        let waiting = Waiting {
            connection: self,
            id,
        };
        Ok((waiting, answered))
    }
}

/// Until when is waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    /// As a timer wants it.
    pub(super) at: Instant,
    /// How long that is from now.
    pub(super) ttl_ms: u64,
}

fn not_sent(ended: &Ended) -> ErrandError {
    ErrandError::NotSent(ended.to_string().into())
}

/// Somebody waits for a live answer; dropped unanswered, the hub is told.
#[derive(Debug)]
struct Waiting<'a> {
    connection: &'a Connection,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = lock(&self.connection.table).live.take(self.id);
        if let Some((_, Sent::Perhaps)) = left {
            let id = itoa::Buffer::new().format(self.id).into();
            self.connection.cancel(None, id);
        }
    }
}

/// Somebody waits for a receipt.
#[derive(Debug)]
struct Awaited<'a> {
    connection: &'a Connection,
    id: Arc<str>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(&self.connection.table).receipts.remove(&self.id);
    }
}
