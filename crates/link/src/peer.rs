//! One JSON-RPC conversation over a pair of byte streams: who waits, and what is to be written.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::caller::CallerEnd;
use bowline_core::pending::Sent;
use bowline_core::sync::lock;
use bowline_wire::mcp::method;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::desk::{self, Counts, Desk, Receiver, Waiter, Waiters};
use crate::link::{Answer, Exit, LinkError, NotSent, Request};
use crate::modern::listen::Opened;
use crate::stdio::StdioLimits;

pub(crate) mod frame;
mod length;
mod lines;
mod overlong;
mod reader;
mod writer;

pub(crate) use reader::read_loop;
pub(crate) use writer::write_loop;

/// Answers to requests of the server that may wait to be written.
const REPLIES_MAX: usize = 64;

/// The part of a link that does not know what carries the bytes.
#[derive(Debug)]
pub(crate) struct Peer {
    server: Arc<str>,
    limits: StdioLimits,
    state: Mutex<State>,
    /// Follows `State::phase`, for those who wait.
    phase: watch::Sender<Phase>,
    /// Wakes the writer.
    work: Notify,
    /// Wakes requests that wait for room in the queue.
    room: Notify,
    /// Whether the server was found to be of the modern era, which asks in its answers only.
    modern: AtomicBool,
    /// Streams of changes among those who wait.
    listening: AtomicUsize,
    pub(crate) counts: Counts,
}

/// How far the life of a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Requests are taken.
    Open,
    /// No more requests are taken; the process goes, or has gone.
    Ending(Exit, Stop),
    /// All is over.
    Ended(Exit),
}

/// How a process is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// With time to finish.
    Orderly,
    /// At once.
    AtOnce,
}

/// All of it is guarded by one lock, so that registering, sending, answering and giving up have
/// one order.
#[derive(Debug)]
struct State {
    phase: Phase,
    waiters: Waiters,
    /// Whole messages that have not been given to the server.
    queue: VecDeque<Frame>,
    /// Invariant: the sum of the lengths in `queue`.
    queue_bytes: usize,
    /// Requests to be taken back. Invariant: each was sent and waited for when the writer last
    /// looked, so there are never more than may be in flight.
    cancels: VecDeque<Cancel>,
    /// Answers to requests of the server.
    replies: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct Frame {
    /// The request that it carries; absent for notifications.
    id: Option<u64>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Cancel {
    id: u64,
    reason: &'static str,
}

impl Peer {
    pub(crate) fn new(
        server: Arc<str>,
        limits: StdioLimits,
        owner: Option<Arc<dyn CallerEnd>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            limits,
            state: Mutex::new(State {
                phase: Phase::Open,
                waiters: Waiters::new(limits.in_flight_max, owner),
                queue: VecDeque::new(),
                queue_bytes: 0,
                cancels: VecDeque::new(),
                replies: VecDeque::new(),
            }),
            phase: watch::Sender::new(Phase::Open),
            work: Notify::new(),
            room: Notify::new(),
            modern: AtomicBool::new(false),
            listening: AtomicUsize::new(0),
            counts: Counts::default(),
        })
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn request(&self, request: Request) -> Result<Answer, LinkError> {
        let (waiter, answer) = Waiter::new(&request);
        let id = self.register(waiter)?;
        self.carry(id, answer, request).await
    }

    /// Asks for a stream of changes, with a request of the modern era.
    pub(crate) fn listen(self: &Arc<Self>, request: Request) -> Opened {
        let (tell, agreed) = oneshot::channel();
        let peer = Arc::clone(self);
        let over = async move {
            let (waiter, answer) = Waiter::new(&request);
            let id = peer.register(waiter.listening(tell))?;
            let _listening = Listening::begin(&peer);
            peer.carry(id, answer, request).await
        };
        let over = Box::pin(over);
        Opened { agreed, over }
    }

    /// Sends a request for which somebody waits under `id`.
    async fn carry(
        &self,
        id: u64,
        mut answer: Receiver,
        request: Request,
    ) -> Result<Answer, LinkError> {
        let mut waiting = Waiting {
            peer: self,
            id: Some(id),
            cancels: !matches!(&*request.method, method::INITIALIZE | method::DISCOVER),
        };
        let frame = frame::request(id, &request, frame::Place::Params);
        let deadline = request.deadline;
        // The parameters can be large, and the wait long.
        drop(request);
        if frame.len() > self.limits.queue_bytes_max {
            let bytes_max = self.limits.queue_bytes_max;
            return Err(LinkError::NotSent(NotSent::TooLarge { bytes_max }));
        }
        let mut queued = false;
        let outcome = self.exchange(id, frame, &mut answer, deadline, &mut queued);
        if let Some(outcome) = outcome.await {
            if outcome.is_ok() {
                waiting.id = None;
            }
            return outcome;
        }
        match waiting.give_up("the request timed out") {
            Some(Sent::Perhaps) => Err(LinkError::Timeout {
                sent: Sent::Perhaps,
            }),
            Some(Sent::No) if queued => Err(LinkError::NotSent(NotSent::NotRead)),
            Some(Sent::No) => Err(LinkError::NotSent(NotSent::QueueFull)),
            // It was answered in the same moment.
            None => answer.try_recv().unwrap_or(Err(desk::GONE)),
        }
    }

    /// Sends a frame and waits; `None` when the deadline came first.
    async fn exchange(
        &self,
        id: u64,
        frame: Vec<u8>,
        answer: &mut Receiver,
        deadline: Instant,
        queued: &mut bool,
    ) -> Option<Result<Answer, LinkError>> {
        // Nearly always there is room at once, and no timer is needed for that.
        let pushed = match self.push(Some(id), frame) {
            Ok(()) => Ok(()),
            Err(Refused::Closed(exit)) => Err(LinkError::Closed(exit)),
            Err(Refused::Full(frame)) => {
                let waiting = timeout_at(deadline, self.push_when_room(id, frame));
                waiting.await.ok()?
            }
        };
        if let Err(error) = pushed {
            return Some(Err(error));
        }
        *queued = true;
        desk::wait(self, id, answer, deadline).await
    }

    /// Queues a notification if there is room.
    pub(crate) fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        match self.push(None, frame::notification(method, params)) {
            Ok(()) => Ok(()),
            Err(Refused::Closed(exit)) => Err(LinkError::Closed(exit)),
            Err(Refused::Full(_)) => Err(LinkError::NotSent(NotSent::QueueFull)),
        }
    }

    /// Takes no more requests of the server: it was found to be of the modern era.
    pub(crate) fn take_no_requests(&self) {
        self.modern.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().phase == Phase::Open
    }

    pub(crate) fn in_flight(&self) -> usize {
        let waiting = self.lock().waiters.pending.len();
        // A stream of changes is open for as long as the link; nobody waits for its end.
        waiting.saturating_sub(self.listening.load(Ordering::Relaxed))
    }

    /// Waits until no more requests are taken, and tells why and how the process is to go.
    pub(crate) async fn ending(&self) -> (Exit, Stop) {
        match self.reached(|phase| *phase != Phase::Open).await {
            Phase::Ending(exit, stop) => (exit, stop),
            Phase::Ended(exit) => (exit, Stop::AtOnce),
            Phase::Open => (Exit::Gone, Stop::AtOnce),
        }
    }

    /// Waits until the process is to go at once.
    pub(crate) async fn haste(&self) {
        let is_calm =
            |phase: &Phase| matches!(phase, Phase::Open | Phase::Ending(_, Stop::Orderly));
        self.reached(|phase| !is_calm(phase)).await;
    }

    /// Waits until all is over.
    pub(crate) async fn ended(&self) -> Exit {
        match self.reached(|phase| matches!(phase, Phase::Ended(_))).await {
            Phase::Ended(exit) => exit,
            Phase::Open | Phase::Ending(..) => Exit::Gone,
        }
    }

    async fn reached(&self, wanted: impl FnMut(&Phase) -> bool + Send) -> Phase {
        let mut phase = self.phase.subscribe();
        let reached = phase.wait_for(wanted).await;
        reached.map_or(Phase::Ended(Exit::Gone), |phase| *phase)
    }

    /// Takes no more requests, and gives back those that have not been sent. The first reason
    /// counts; only the haste may grow.
    pub(crate) fn end(&self, exit: Exit, stop: Stop) {
        let mut state = self.lock();
        let phase = match state.phase {
            Phase::Open => Phase::Ending(exit, stop),
            Phase::Ending(first, Stop::Orderly) => Phase::Ending(first, stop),
            Phase::Ending(_, Stop::AtOnce) | Phase::Ended(_) => return,
        };
        state.phase = phase;
        let unsent: Vec<Frame> = state.queue.drain(..).collect();
        state.queue_bytes = 0;
        for id in unsent.iter().filter_map(|frame| frame.id) {
            if let Some((waiter, _)) = state.waiters.pending.take(id) {
                let _ = waiter.answer.send(Err(LinkError::Closed(exit)));
            }
        }
        // Told under the lock, so that those who wait see the phases in their order.
        self.phase.send_replace(phase);
        drop(state);
        self.work.notify_one();
        self.room.notify_waiters();
    }

    /// Tells all who still wait that no answer will come.
    pub(crate) fn fail(&self, exit: Exit) {
        for (waiter, sent) in self.lock().waiters.pending.drain() {
            let _ = waiter.answer.send(Err(match sent {
                Sent::No => LinkError::Closed(exit),
                Sent::Perhaps => LinkError::Lost(exit),
            }));
        }
    }

    /// Ends the life of the link; the first end counts.
    pub(crate) fn finish(&self, exit: Exit) {
        self.end(exit, Stop::AtOnce);
        self.fail(exit);
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Ended(_)) {
            state.phase = Phase::Ended(exit);
            self.phase.send_replace(Phase::Ended(exit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn register(&self, waiter: Waiter) -> Result<u64, LinkError> {
        let mut state = self.lock();
        if let Phase::Ending(exit, _) | Phase::Ended(exit) = state.phase {
            return Err(LinkError::Closed(exit));
        }
        let busy = |_| LinkError::Busy {
            in_flight_max: self.limits.in_flight_max,
        };
        state.waiters.pending.register(waiter).map_err(busy)
    }

    async fn push_when_room(&self, id: u64, mut frame: Vec<u8>) -> Result<(), LinkError> {
        loop {
            // Made before the look at the queue, so that room made after it is not missed.
            let room = self.room.notified();
            match self.push(Some(id), frame) {
                Ok(()) => return Ok(()),
                Err(Refused::Closed(exit)) => return Err(LinkError::Closed(exit)),
                Err(Refused::Full(back)) => frame = back,
            }
            room.await;
        }
    }

    fn push(&self, id: Option<u64>, bytes: Vec<u8>) -> Result<(), Refused> {
        let mut state = self.lock();
        if let Phase::Ending(exit, _) | Phase::Ended(exit) = state.phase {
            return Err(Refused::Closed(exit));
        }
        let queue_bytes = state.queue_bytes + bytes.len();
        if state.queue.len() >= self.limits.queue_frames_max
            || queue_bytes > self.limits.queue_bytes_max
        {
            return Err(Refused::Full(bytes));
        }
        state.queue_bytes = queue_bytes;
        state.queue.push_back(Frame { id, bytes });
        // A writer that has not yet taken what was there before is awake already.
        let wake = state.queue.len() == 1;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }
}

impl Desk for Peer {
    fn with<R>(&self, look: impl FnOnce(&mut Waiters) -> R) -> R {
        look(&mut self.lock().waiters)
    }

    fn reply(self: &Arc<Self>, mut answer: Vec<u8>) {
        frame::end(&mut answer);
        let mut state = self.lock();
        if state.replies.len() >= REPLIES_MAX {
            Counts::add(&self.counts.dropped);
            return;
        }
        state.replies.push_back(answer);
        drop(state);
        self.work.notify_one();
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn server(&self) -> &str {
        &self.server
    }

    fn takes_requests(&self) -> bool {
        !self.modern.load(Ordering::Relaxed)
    }
}

/// Why a frame was not queued.
#[derive(Debug)]
enum Refused {
    Closed(Exit),
    /// Given back, to be tried again.
    Full(Vec<u8>),
}

/// Counts one stream of changes.
#[derive(Debug)]
struct Listening<'a>(&'a Peer);

impl<'a> Listening<'a> {
    fn begin(peer: &'a Peer) -> Self {
        peer.listening.fetch_add(1, Ordering::Relaxed);
        Self(peer)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listening.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The wait of one caller; dropped early, it takes the request back.
#[derive(Debug)]
struct Waiting<'a> {
    peer: &'a Peer,
    /// Absent when the wait is over.
    id: Option<u64>,
    /// Whether the server may be told: the handshake must not be taken back.
    cancels: bool,
}

impl Waiting<'_> {
    /// Ends the wait. Returns whether the request may have left, or nothing when it is over.
    fn give_up(&mut self, reason: &'static str) -> Option<Sent> {
        let id = self.id.take()?;
        let mut state = self.peer.lock();
        let (sent, unasked) = state.waiters.give_up(id)?;
        match sent {
            Sent::No => {
                let at = state.queue.iter().position(|frame| frame.id == Some(id));
                let frame = at.and_then(|at| state.queue.remove(at));
                state.queue_bytes -= frame.as_ref().map_or(0, |frame| frame.bytes.len());
                drop(state);
                if frame.is_some() {
                    self.peer.room.notify_waiters();
                }
            }
            Sent::Perhaps if self.cancels => {
                state.cancels.push_back(Cancel { id, reason });
                debug_assert!(state.cancels.len() <= self.peer.limits.in_flight_max);
                drop(state);
                self.peer.work.notify_one();
            }
            Sent::Perhaps => drop(state),
        }
        for question in unasked {
            question.withdraw();
        }
        Some(sent)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.give_up("the caller took the request back");
    }
}

#[cfg(test)]
mod tests;
