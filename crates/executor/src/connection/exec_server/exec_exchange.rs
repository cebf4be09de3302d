//! State of one HTTP exchange at an exec-server: the response head and the body deltas.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::sync::lock;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::DisconnectReason;
use bowline_runtime::timer;
use bowline_wire::FrameError;

use crate::execserver::{BodyDelta, ExecHttpResponse, ExecRefusal, code};
use crate::reassembly::{
    ChunkError, ChunkNumbering, OverflowPolicy, ReassemblyBuffer, ReassemblyItem, ReassemblyLimits,
};
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::connection::fault_map::{self, EXECUTOR_REFUSED};
use crate::connection::waker_slot::{HasWakerSlot, WakerSlot, wake_waiter};

/// Unread chunks of a response; more chunks are merged into the last.
const PIECES_MAX: usize = 256;

/// Buffered bytes of all responses of a connection. At this limit the socket is not read.
const CONNECTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Buffered bytes of a response with a stopped reader.
const STALLED_BYTES_MAX: usize = 1024 * 1024;

/// Longest time without a read, and longest total delay of further responses by a slow reader.
const STALL_MAX: Duration = Duration::from_secs(2);

/// Grace for a seemingly stopped reader: the whole process may have been suspended.
pub(super) const READ_GRACE: Duration = Duration::from_millis(100);

/// How the response body arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseMode {
    /// In deltas.
    Streamed,
    /// With the response.
    Whole,
}

/// Result of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeltaOutcome {
    Open,
    Closed,
    /// Not accepted: the connection has reached the buffer limit.
    NoRoom,
    /// Not accepted: the reader seems to have stopped.
    Stalled,
}

/// Buffered bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct BufferBudget {
    waiting_bytes: AtomicUsize,
    /// Notified when bytes are released.
    released: Notify,
}

impl BufferBudget {
    fn try_take(&self, bytes: usize) -> bool {
        let add = |waiting: usize| {
            let sum = waiting.checked_add(bytes)?;
            (sum <= CONNECTION_BYTES_MAX).then_some(sum)
        };
        let order = Ordering::Relaxed;
        self.waiting_bytes.fetch_update(order, order, add).is_ok()
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.released.notify_one();
        }
    }

    /// Waits until bytes are released; `false` at the deadline.
    pub(super) async fn wait_released(&self, deadline: Instant) -> bool {
        timeout_at(deadline, self.released.notified()).await.is_ok()
    }
}

/// An HTTP exchange, as seen by the waiting caller.
#[derive(Debug)]
pub(super) struct ExecExchange {
    stream_id: u64,
    budget: Arc<BufferBudget>,
    state: Mutex<ExecExchangeState>,
}

#[derive(Debug)]
struct ExecExchangeState {
    head: ExecHeadState,
    body: ReassemblyBuffer<HttpError>,
    /// The reader has dropped the exchange.
    is_released: bool,
    /// Time of the last read, or of the first unread chunk.
    unread_since: Instant,
    /// Delay of further responses since the reader last caught up.
    hold_up_time: Duration,
    /// Waker of the task waiting for the head or the next chunk.
    waker_slot: WakerSlot,
}

#[derive(Debug)]
enum ExecHeadState {
    Pending,
    Received(Result<Bytes, HttpError>),
    Taken,
}

impl ExecExchange {
    pub(super) fn new(stream_id: u64, budget: Arc<BufferBudget>) -> Self {
        let room = ReassemblyLimits {
            chunks_max: PIECES_MAX,
            bytes_max: CONNECTION_BYTES_MAX,
            overflow: OverflowPolicy::Merge,
        };
        let state = ExecExchangeState {
            head: ExecHeadState::Pending,
            body: ReassemblyBuffer::new(ChunkNumbering::ByChunk, room),
            is_released: false,
            unread_since: timer::now(),
            hold_up_time: Duration::ZERO,
            waker_slot: WakerSlot::default(),
        };
        Self {
            stream_id,
            budget,
            state: Mutex::new(state),
        }
    }

    /// Returns the stream number; 0 without a stream.
    pub(super) const fn stream_id(&self) -> u64 {
        self.stream_id
    }

    /// Waits for the response head.
    pub(super) async fn receive_head(&self) -> Result<ExecHttpResponse, HttpError> {
        let response = poll_fn(|cx| {
            let mut state = lock(&self.state);
            match std::mem::replace(&mut state.head, ExecHeadState::Taken) {
                ExecHeadState::Received(response) => Poll::Ready(response),
                ExecHeadState::Pending | ExecHeadState::Taken => {
                    state.head = ExecHeadState::Pending;
                    state.waker_slot.park(cx)
                }
            }
        });
        let response = response.await?;
        ExecHttpResponse::parse(&response)
            .map_err(|error| HttpError::BadHead(error.to_string().into()))
    }

    /// Returns the body if complete in a single chunk.
    pub(super) fn take_whole_body(&self) -> Option<Bytes> {
        let whole = lock(&self.state).body.take_complete()?;
        self.budget.release(whole.len());
        Some(whole)
    }

    /// Polls for the next body chunk.
    pub(super) fn poll_chunk(&self, cx: &Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.state);
        match state.body.next_item() {
            Some(ReassemblyItem::Chunk(piece)) => {
                state.unread_since = timer::now();
                if state.body.buffered_bytes() == 0 {
                    state.hold_up_time = Duration::ZERO;
                }
                drop(state);
                self.budget.release(piece.len());
                Poll::Ready(Some(Ok(piece)))
            }
            Some(ReassemblyItem::End) => Poll::Ready(None),
            Some(ReassemblyItem::Failed(cause)) => Poll::Ready(Some(Err(cause))),
            None => state.waker_slot.park(cx),
        }
    }

    /// Releases the exchange: buffered chunks are dropped, later chunks are ignored.
    pub(super) fn release(&self) {
        let mut state = lock(&self.state);
        state.is_released = true;
        let waiting = state.body.buffered_bytes();
        while let Some(ReassemblyItem::Chunk(_)) = state.body.next_item() {}
        drop(state);
        self.budget.release(waiting);
    }

    /// Sets the response or the refusal.
    pub(super) fn set_response(&self, response: Result<Bytes, ExecRefusal>) {
        let mut state = lock(&self.state);
        if let ExecHeadState::Pending = state.head {
            state.head =
                ExecHeadState::Received(response.map_err(|refusal| refusal_error(&refusal)));
        }
        wake_waiter(state);
    }

    /// Adds a body delta. An error means a protocol violation.
    pub(super) fn push_delta(&self, delta: &BodyDelta<'_>) -> Result<DeltaOutcome, FrameError> {
        let mut state = lock(&self.state);
        if state.is_released || state.body.is_finished() {
            return Ok(DeltaOutcome::Closed);
        }
        if state.is_stalled(timer::now()) {
            return Ok(DeltaOutcome::Stalled);
        }
        if let Err(unfit) = self.push_piece(&mut state, delta)? {
            if unfit == ChunkError::Overflow {
                return Ok(DeltaOutcome::NoRoom);
            }
            let cause = self.to_http_error(unfit);
            state.body.fail(cause);
        } else if let Some(error) = &delta.error {
            let reason = format!("the answer `http-{}` broke off: {error}", self.stream_id);
            state.body.fail(HttpError::Lost(reason.into()));
        } else if delta.is_done {
            state.body.finish();
        }
        let took = match state.body.is_finished() {
            true => DeltaOutcome::Closed,
            false => DeltaOutcome::Open,
        };
        wake_waiter(state);
        Ok(took)
    }

    fn push_piece(
        &self,
        state: &mut ExecExchangeState,
        delta: &BodyDelta<'_>,
    ) -> Result<Result<(), ChunkError>, FrameError> {
        let body = &mut state.body;
        let (expected, found) = (body.next_number(), delta.seq);
        if expected != found {
            return Ok(Err(ChunkError::OutOfOrder { expected, found }));
        }
        if delta.is_empty() && (delta.is_done || delta.error.is_some()) {
            // An empty final delta has no sequence number.
            return Ok(Ok(()));
        }
        // Reserve room before decoding.
        let bytes = delta.len();
        if !self.budget.try_take(bytes) {
            return Ok(Err(ChunkError::Overflow));
        }
        if body.buffered_bytes() == 0 {
            state.unread_since = timer::now();
        }
        let pushed = delta.decode().map(|piece| body.push_chunk(found, piece));
        if !matches!(pushed, Ok(Ok(()))) {
            self.budget.release(bytes);
        }
        pushed
    }

    /// Returns the number of buffered bytes.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.state).body.buffered_bytes()
    }

    /// Whether the reader seems to have stopped.
    pub(super) fn is_stalled(&self) -> bool {
        lock(&self.state).is_stalled(timer::now())
    }

    /// Returns the stall time of the reader.
    pub(super) fn stall_deadline(&self) -> Instant {
        lock(&self.state).unread_since + STALL_MAX
    }

    /// Records a delay of further responses; returns whether the total is too long. A wait counts
    /// at most the grace, even if the process was suspended.
    pub(super) fn record_hold_up(&self, waited: Duration) -> bool {
        let mut state = lock(&self.state);
        state.hold_up_time += waited.min(READ_GRACE);
        state.hold_up_time >= STALL_MAX
    }

    /// Fails the exchange and drops the buffered bytes, because the reader is too slow.
    pub(super) fn fail_overflow(&self) {
        let mut state = lock(&self.state);
        self.abort_body(&mut state);
        wake_waiter(state);
    }

    fn abort_body(&self, state: &mut ExecExchangeState) {
        let reason = format!(
            "`http-{}` had {} bytes waiting",
            self.stream_id,
            state.body.buffered_bytes()
        );
        let waiting = state.body.abort(HttpError::Overflow(reason.into()));
        self.budget.release(waiting);
    }

    fn to_http_error(&self, unfit: ChunkError) -> HttpError {
        let stream = self.stream_id;
        let reason = match unfit {
            ChunkError::Overflow => format!("the answer `http-{stream}` is larger than may wait"),
            ChunkError::OutOfOrder { expected, found } => {
                format!("the answer `http-{stream}` has piece {found} where {expected} is next")
            }
            ChunkError::Late => format!("the answer `http-{stream}` went on behind its end"),
        };
        HttpError::Lost(reason.into())
    }

    /// The connection is lost; buffered chunks remain readable.
    pub(super) fn disconnect(&self, disconnect_reason: &DisconnectReason) {
        let reason = match self.stream_id {
            0 => disconnect_reason.to_string(),
            stream => format!("{disconnect_reason} (`http-{stream}`)"),
        };
        let cause = HttpError::Disconnected(reason.into());
        let mut state = lock(&self.state);
        if let ExecHeadState::Pending = state.head {
            state.head = ExecHeadState::Received(Err(cause.clone()));
        }
        state.body.fail(cause);
        wake_waiter(state);
    }
}

impl ExecExchangeState {
    /// Whether the reader has stopped with the maximum of buffered bytes.
    fn is_stalled(&self, now: Instant) -> bool {
        self.body.buffered_bytes() >= STALLED_BYTES_MAX && now >= self.unread_since + STALL_MAX
    }
}

impl HasWakerSlot for ExecExchangeState {
    fn waker_slot(&mut self) -> &mut WakerSlot {
        &mut self.waker_slot
    }
}

/// Maps a refusal to an error. Only a typed fault tells whether the request was sent; the codes of
/// third-party servers do not.
fn refusal_error(refusal: &ExecRefusal) -> HttpError {
    if let Some(fault) = &refusal.stream_fault {
        return fault_map::to_http_error(fault);
    }
    match refusal.code {
        code::INVALID_REQUEST | code::METHOD | code::INVALID_PARAMS => {
            HttpError::RemoteFailure(Arc::new(FailureReport {
                class: FailureClass::Unavailable,
                execution: ExecutionStatus::NotStarted,
                retry: RetryAdvice::Never,
                origin: FailureOrigin::Executor,
                code: EXECUTOR_REFUSED.into(),
                reason: Arc::clone(&refusal.message),
            }))
        }
        _ => HttpError::Lost(Arc::clone(&refusal.message)),
    }
}
