//! JSON-RPC connection over a pair of byte streams: pending requests and the write queue.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::call::ServerResponse;
use bowline_core::client_handle::ClientHandle;
use bowline_core::pending_table::SendState;
use bowline_core::sync::lock;
use bowline_wire::mcp::method;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::demux::{self, Demux, DemuxCounters, PendingRequest, PendingRequests, ResponseReceiver};
use crate::link::{LinkError, LinkExit, LinkRequest, NotSentReason};
use crate::modern::change_listen::ChangeStream;
use crate::stdio::StdioLimits;

mod overlong_line;
mod rpc_reader;
mod rpc_writer;

pub(crate) use rpc_reader::read_loop;
#[cfg(feature = "http")]
pub(crate) use rpc_writer::write_cancelled;
pub(crate) use rpc_writer::{TracePlacement, notification_frame, request_frame, write_loop};

/// Queued replies to server requests.
const REPLIES_MAX: usize = 64;

/// The transport-independent part of a stdio link.
#[derive(Debug)]
pub(crate) struct RpcConnection {
    server: Arc<str>,
    limits: StdioLimits,
    state: Mutex<RpcState>,
    /// Mirrors `RpcState::phase` for waiting tasks.
    phase: watch::Sender<RpcPhase>,
    /// Wakes the writer task.
    work: Notify,
    /// Wakes requests that wait for room in the queue.
    room_freed: Notify,
    /// Whether the server is modern, and so must not send requests.
    rejects_requests: AtomicBool,
    /// Open change streams among the pending requests.
    open_streams: AtomicUsize,
    pub(crate) counters: DemuxCounters,
}

/// Phase of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RpcPhase {
    /// Requests are accepted.
    Open,
    /// No new requests; the process is stopping or has exited.
    Ending(LinkExit, StopMode),
    /// The link has ended.
    Ended(LinkExit),
}

/// How to stop the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopMode {
    /// With time to finish.
    Graceful,
    /// By killing it.
    Immediate,
}

/// Guarded by a single lock, so registering, sending, responding and cancelling have one order.
#[derive(Debug)]
struct RpcState {
    phase: RpcPhase,
    requests: PendingRequests,
    /// Whole messages that the writer has not taken.
    queue: VecDeque<QueuedFrame>,
    /// Invariant: the sum of the lengths in `queue`.
    queue_bytes: usize,
    /// Requests to cancel. Invariant: each was sent and pending when the writer last looked, so
    /// there are never more than `in_flight_max`.
    cancels: VecDeque<CancelNotice>,
    /// Replies to server requests.
    replies: VecDeque<Vec<u8>>,
}

#[derive(Debug)]
struct QueuedFrame {
    /// Id of a request; absent for notifications.
    id: Option<u64>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct CancelNotice {
    id: u64,
    reason: &'static str,
}

impl RpcConnection {
    pub(crate) fn new(
        server: Arc<str>,
        limits: StdioLimits,
        owner: Option<Arc<dyn ClientHandle>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            limits,
            state: Mutex::new(RpcState {
                phase: RpcPhase::Open,
                requests: PendingRequests::new(limits.in_flight_max, owner),
                queue: VecDeque::new(),
                queue_bytes: 0,
                cancels: VecDeque::new(),
                replies: VecDeque::new(),
            }),
            phase: watch::Sender::new(RpcPhase::Open),
            work: Notify::new(),
            room_freed: Notify::new(),
            rejects_requests: AtomicBool::new(false),
            open_streams: AtomicUsize::new(0),
            counters: DemuxCounters::default(),
        })
    }

    /// Sends a request and waits for the response.
    pub(crate) async fn request(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        let (entry, receiver) = PendingRequest::new(&request);
        let id = self.register_request(entry)?;
        self.send_and_wait(id, receiver, request).await
    }

    /// Opens a change stream with a modern request.
    pub(crate) fn open_change_stream(self: &Arc<Self>, request: LinkRequest) -> ChangeStream {
        let (acknowledge, acknowledged) = oneshot::channel();
        let peer = Arc::clone(self);
        let finished = async move {
            let (entry, receiver) = PendingRequest::new(&request);
            let id = peer.register_request(entry.with_subscription(acknowledge))?;
            let _listening = ListenGuard::new(&peer);
            peer.send_and_wait(id, receiver, request).await
        };
        let finished = Box::pin(finished);
        ChangeStream {
            acknowledged,
            finished,
        }
    }

    /// Sends the request registered as `id` and waits for the response.
    async fn send_and_wait(
        &self,
        id: u64,
        mut receiver: ResponseReceiver,
        request: LinkRequest,
    ) -> Result<ServerResponse, LinkError> {
        let mut waiting = RpcPendingGuard {
            rpc: self,
            id: Some(id),
            sends_cancel: !matches!(&*request.method, method::INITIALIZE | method::DISCOVER),
        };
        let frame = request_frame(id, &request, TracePlacement::Params);
        let deadline = request.deadline;
        // The parameters can be large, and the wait long.
        drop(request);
        if frame.len() > self.limits.queue_bytes_max {
            let bytes_max = self.limits.queue_bytes_max;
            return Err(LinkError::NotSent(NotSentReason::TooLarge { bytes_max }));
        }
        let mut queued = false;
        let outcome = self.push_and_wait(id, frame, &mut receiver, deadline, &mut queued);
        if let Some(outcome) = outcome.await {
            if outcome.is_ok() {
                waiting.id = None;
            }
            return outcome;
        }
        match waiting.abandon("the request timed out") {
            Some(SendState::MaybeSent) => Err(LinkError::Timeout {
                sent: SendState::MaybeSent,
            }),
            Some(SendState::NotSent) if queued => Err(LinkError::NotSent(NotSentReason::NotRead)),
            Some(SendState::NotSent) => Err(LinkError::NotSent(NotSentReason::QueueFull)),
            // The response arrived at the same moment.
            None => receiver.try_recv().unwrap_or(Err(demux::LINK_GONE)),
        }
    }

    /// Queues a frame and waits; `None` when the deadline came first.
    async fn push_and_wait(
        &self,
        id: u64,
        frame: Vec<u8>,
        receiver: &mut ResponseReceiver,
        deadline: Instant,
        queued: &mut bool,
    ) -> Option<Result<ServerResponse, LinkError>> {
        // The queue nearly always has room, so no timer is needed.
        let pushed = match self.push_frame(Some(id), frame) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(exit)) => Err(LinkError::Closed(exit)),
            Err(PushError::Full(frame)) => {
                let waiting = timeout_at(deadline, self.push_when_room(id, frame));
                waiting.await.ok()?
            }
        };
        if let Err(error) = pushed {
            return Some(Err(error));
        }
        *queued = true;
        demux::wait_response(self, id, receiver, deadline).await
    }

    /// Queues a notification if there is room.
    pub(crate) fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        match self.push_frame(None, notification_frame(method, params)) {
            Ok(()) => Ok(()),
            Err(PushError::Closed(exit)) => Err(LinkError::Closed(exit)),
            Err(PushError::Full(_)) => Err(LinkError::NotSent(NotSentReason::QueueFull)),
        }
    }

    /// Rejects server requests, as the server is modern.
    pub(crate) fn reject_server_requests(&self) {
        self.rejects_requests.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().phase == RpcPhase::Open
    }

    pub(crate) fn in_flight(&self) -> usize {
        let waiting = self.lock().requests.pending.len();
        // A change stream stays open with the link; no caller waits for it.
        waiting.saturating_sub(self.open_streams.load(Ordering::Relaxed))
    }

    /// Waits until no more requests are accepted; returns the reason and the stop mode.
    pub(crate) async fn wait_ending(&self) -> (LinkExit, StopMode) {
        match self.wait_phase(|phase| *phase != RpcPhase::Open).await {
            RpcPhase::Ending(exit, stop) => (exit, stop),
            RpcPhase::Ended(exit) => (exit, StopMode::Immediate),
            RpcPhase::Open => (LinkExit::Gone, StopMode::Immediate),
        }
    }

    /// Waits until the process must be killed.
    pub(crate) async fn wait_kill_requested(&self) {
        let is_calm = |phase: &RpcPhase| {
            matches!(
                phase,
                RpcPhase::Open | RpcPhase::Ending(_, StopMode::Graceful)
            )
        };
        self.wait_phase(|phase| !is_calm(phase)).await;
    }

    /// Waits for the end of the link.
    pub(crate) async fn wait_ended(&self) -> LinkExit {
        match self
            .wait_phase(|phase| matches!(phase, RpcPhase::Ended(_)))
            .await
        {
            RpcPhase::Ended(exit) => exit,
            RpcPhase::Open | RpcPhase::Ending(..) => LinkExit::Gone,
        }
    }

    async fn wait_phase(&self, predicate: impl FnMut(&RpcPhase) -> bool + Send) -> RpcPhase {
        let mut phase = self.phase.subscribe();
        let reached = phase.wait_for(predicate).await;
        reached.map_or(RpcPhase::Ended(LinkExit::Gone), |phase| *phase)
    }

    /// Stops accepting requests, and fails unsent requests. The first reason counts; the stop mode
    /// can only become immediate.
    pub(crate) fn begin_shutdown(&self, exit: LinkExit, stop: StopMode) {
        let mut state = self.lock();
        let phase = match state.phase {
            RpcPhase::Open => RpcPhase::Ending(exit, stop),
            RpcPhase::Ending(first, StopMode::Graceful) => RpcPhase::Ending(first, stop),
            RpcPhase::Ending(_, StopMode::Immediate) | RpcPhase::Ended(_) => return,
        };
        state.phase = phase;
        let unsent: Vec<QueuedFrame> = state.queue.drain(..).collect();
        state.queue_bytes = 0;
        for id in unsent.iter().filter_map(|frame| frame.id) {
            if let Some((entry, _)) = state.requests.pending.take(id) {
                let _ = entry.response.send(Err(LinkError::Closed(exit)));
            }
        }
        // Sent under the lock, so waiting tasks see phases in order.
        self.phase.send_replace(phase);
        drop(state);
        self.work.notify_one();
        self.room_freed.notify_waiters();
    }

    /// Fails all pending requests.
    pub(crate) fn fail_pending(&self, exit: LinkExit) {
        for (entry, sent) in self.lock().requests.pending.drain() {
            let _ = entry.response.send(Err(match sent {
                SendState::NotSent => LinkError::Closed(exit),
                SendState::MaybeSent => LinkError::Lost(exit),
            }));
        }
    }

    /// Ends the link; the first exit counts.
    pub(crate) fn finish(&self, exit: LinkExit) {
        self.begin_shutdown(exit, StopMode::Immediate);
        self.fail_pending(exit);
        let mut state = self.lock();
        if !matches!(state.phase, RpcPhase::Ended(_)) {
            state.phase = RpcPhase::Ended(exit);
            self.phase.send_replace(RpcPhase::Ended(exit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, RpcState> {
        lock(&self.state)
    }

    fn register_request(&self, entry: PendingRequest) -> Result<u64, LinkError> {
        let mut state = self.lock();
        if let RpcPhase::Ending(exit, _) | RpcPhase::Ended(exit) = state.phase {
            return Err(LinkError::Closed(exit));
        }
        let busy = |_| LinkError::Busy {
            in_flight_max: self.limits.in_flight_max,
        };
        state.requests.pending.register(entry).map_err(busy)
    }

    async fn push_when_room(&self, id: u64, mut frame: Vec<u8>) -> Result<(), LinkError> {
        loop {
            // Registered before the check, so a later wake-up is not missed.
            let room = self.room_freed.notified();
            match self.push_frame(Some(id), frame) {
                Ok(()) => return Ok(()),
                Err(PushError::Closed(exit)) => return Err(LinkError::Closed(exit)),
                Err(PushError::Full(back)) => frame = back,
            }
            room.await;
        }
    }

    fn push_frame(&self, id: Option<u64>, bytes: Vec<u8>) -> Result<(), PushError> {
        let mut state = self.lock();
        if let RpcPhase::Ending(exit, _) | RpcPhase::Ended(exit) = state.phase {
            return Err(PushError::Closed(exit));
        }
        let queue_bytes = state.queue_bytes + bytes.len();
        if state.queue.len() >= self.limits.queue_frames_max
            || queue_bytes > self.limits.queue_bytes_max
        {
            return Err(PushError::Full(bytes));
        }
        state.queue_bytes = queue_bytes;
        state.queue.push_back(QueuedFrame { id, bytes });
        // A writer that has not taken the earlier frames is already awake.
        let wake = state.queue.len() == 1;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }
}

impl Demux for RpcConnection {
    fn with_pending<R>(&self, action: impl FnOnce(&mut PendingRequests) -> R) -> R {
        action(&mut self.lock().requests)
    }

    fn send_reply(self: &Arc<Self>, mut reply: Vec<u8>) {
        rpc_writer::finish_line(&mut reply);
        let mut state = self.lock();
        if state.replies.len() >= REPLIES_MAX {
            DemuxCounters::increment(&self.counters.dropped);
            return;
        }
        state.replies.push_back(reply);
        drop(state);
        self.work.notify_one();
    }

    fn counters(&self) -> &DemuxCounters {
        &self.counters
    }

    fn server_name(&self) -> &str {
        &self.server
    }

    fn accepts_requests(&self) -> bool {
        !self.rejects_requests.load(Ordering::Relaxed)
    }
}

/// Why a frame was not queued.
#[derive(Debug)]
enum PushError {
    Closed(LinkExit),
    /// The queue is full; returns the frame for a retry.
    Full(Vec<u8>),
}

/// Counts one open change stream.
#[derive(Debug)]
struct ListenGuard<'a>(&'a RpcConnection);

impl<'a> ListenGuard<'a> {
    fn new(peer: &'a RpcConnection) -> Self {
        peer.open_streams.fetch_add(1, Ordering::Relaxed);
        Self(peer)
    }
}

impl Drop for ListenGuard<'_> {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Guard of a pending request; dropping it early cancels the request.
#[derive(Debug)]
struct RpcPendingGuard<'a> {
    rpc: &'a RpcConnection,
    /// Absent after the wait.
    id: Option<u64>,
    /// Whether to send a cancel to the server; never for the handshake.
    sends_cancel: bool,
}

impl RpcPendingGuard<'_> {
    /// Ends the wait. Returns whether the request may have been sent; `None` if already answered.
    fn abandon(&mut self, reason: &'static str) -> Option<SendState> {
        let id = self.id.take()?;
        let mut state = self.rpc.lock();
        let (send_state, orphaned) = state.requests.abandon_request(id)?;
        match send_state {
            SendState::NotSent => {
                let at = state.queue.iter().position(|frame| frame.id == Some(id));
                let frame = at.and_then(|at| state.queue.remove(at));
                state.queue_bytes -= frame.as_ref().map_or(0, |frame| frame.bytes.len());
                drop(state);
                if frame.is_some() {
                    self.rpc.room_freed.notify_waiters();
                }
            }
            SendState::MaybeSent if self.sends_cancel => {
                state.cancels.push_back(CancelNotice { id, reason });
                debug_assert!(state.cancels.len() <= self.rpc.limits.in_flight_max);
                drop(state);
                self.rpc.work.notify_one();
            }
            SendState::MaybeSent => drop(state),
        }
        for server_request in orphaned {
            server_request.cancel();
        }
        Some(send_state)
    }
}

impl Drop for RpcPendingGuard<'_> {
    fn drop(&mut self) {
        self.abandon("the caller took the request back");
    }
}

#[cfg(test)]
mod tests;
