//! State of one HTTP exchange at an executor: received response chunks and send credit of the
//! request body.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bowline_core::sync::lock;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::DisconnectReason;

use crate::flow::{SendCredit, StreamWindow};
use crate::frames::{ExecutorFrame, ResponseHead, StreamMark};
use crate::reassembly::{
    ChunkError, ChunkNumbering, OverflowPolicy, ReassemblyBuffer, ReassemblyItem, ReassemblyLimits,
};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::executor_session::{CutOutcome, ExecutorSession, ExecutorStream, FrameOutcome};
use super::fault_map;
use super::frame_writer::FrameWriter;
use super::waker_slot::{HasWakerSlot, WakerSlot, wake_waiter};

/// Response chunks that wait to be read; more chunks are merged.
const PIECES_MAX: usize = 256;

/// One HTTP exchange, as seen by the waiting caller.
#[derive(Debug)]
pub(super) struct HttpExchange {
    stream_id: u64,
    session: Arc<ExecutorSession>,
    state: Mutex<HttpExchangeState>,
}

#[derive(Debug)]
struct HttpExchangeState {
    head: HeadState,
    body: ReassemblyBuffer<HttpError>,
    trailers: Bytes,
    /// Flow-control window of the response; returned once.
    window: Option<StreamWindow>,
    /// Send credit of the request body.
    credit: SendCredit,
    /// Early failure; also set if the body arrived before the head.
    cause: Option<HttpError>,
    /// Failure of the upload, which makes the response invalid.
    aborted: Option<HttpError>,
    /// Stream permit of the executor, held while frames may arrive.
    permit: Option<OwnedSemaphorePermit>,
    /// Waker of the single waiting task: for the head, for credit, or for the next chunk.
    waker_slot: WakerSlot,
}

#[derive(Debug)]
enum HeadState {
    Pending,
    Received(ResponseHead),
    Taken,
}

impl HttpExchange {
    /// Returns an unsent exchange; `credit` is the initial send credit from the executor.
    pub(super) fn new(
        stream_id: u64,
        session: Arc<ExecutorSession>,
        window: StreamWindow,
        credit: u64,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let room = ReassemblyLimits {
            chunks_max: PIECES_MAX,
            bytes_max: usize::try_from(session.limits().stream_bytes_max).unwrap_or(usize::MAX),
            overflow: OverflowPolicy::Merge,
        };
        let state = HttpExchangeState {
            head: HeadState::Pending,
            body: ReassemblyBuffer::new(ChunkNumbering::ByByte, room),
            trailers: Bytes::new(),
            window: Some(window),
            credit: SendCredit::new(credit),
            cause: None,
            aborted: None,
            permit: Some(permit),
            waker_slot: WakerSlot::default(),
        };
        Self {
            stream_id,
            session,
            state: Mutex::new(state),
        }
    }

    pub(super) const fn stream_id(&self) -> u64 {
        self.stream_id
    }

    /// Polls for the response head.
    pub(super) fn poll_head(&self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, HttpError>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut state.head, HeadState::Taken) {
            HeadState::Received(head) => return Poll::Ready(Ok(head)),
            HeadState::Pending => state.head = HeadState::Pending,
            HeadState::Taken => {}
        }
        if let Some(cause) = &state.cause {
            return Poll::Ready(Err(cause.clone()));
        }
        state.waker_slot.park(cx)
    }

    /// Waits for send credit; returns the granted bytes, at most `wanted`.
    pub(super) async fn take_credit(&self, wanted: u64) -> u64 {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            match state.credit.take_up_to(wanted) {
                0 => state.waker_slot.park(cx),
                bytes => Poll::Ready(bytes),
            }
        })
        .await
    }

    /// Returns the body if it has arrived completely in one chunk without trailers.
    pub(super) fn take_whole_body(&self) -> Option<Bytes> {
        let mut state = lock(&self.state);
        if !state.trailers.is_empty() {
            return None;
        }
        let whole = state.body.take_complete()?;
        self.session.subtract_waiting_bytes(byte_count(&whole));
        self.return_window(&mut state);
        Some(whole)
    }

    /// Polls for the next body chunk.
    pub(super) fn poll_chunk(
        &self,
        cx: &mut Context<'_>,
        writer: &FrameWriter,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.state);
        if let Some(cause) = &state.aborted {
            return Poll::Ready(Some(Err(cause.clone())));
        }
        match state.body.next_item() {
            Some(ReassemblyItem::Chunk(piece)) => {
                let bytes = byte_count(&piece);
                self.session.subtract_waiting_bytes(bytes);
                let window = state.window.as_mut();
                let more =
                    window.and_then(|window| self.session.budget().record_read(window, bytes));
                let is_open = state.permit.is_some();
                drop(state);
                if let Some(bytes) = more.filter(|_| is_open) {
                    let stream = self.stream_id;
                    writer.push_frame(&ExecutorFrame::Credit { stream, bytes });
                }
                Poll::Ready(Some(Ok(piece)))
            }
            Some(ReassemblyItem::End) => {
                self.return_window(&mut state);
                Poll::Ready(None)
            }
            Some(ReassemblyItem::Failed(cause)) => {
                self.return_window(&mut state);
                Poll::Ready(Some(Err(cause)))
            }
            None => state.waker_slot.park(cx),
        }
    }

    /// Returns the trailer lines.
    pub(super) fn trailers(&self) -> Bytes {
        lock(&self.state).trailers.clone()
    }

    /// Aborts the exchange because the upload failed; the response becomes invalid.
    pub(super) fn abort_upload(&self, cause: HttpError, writer: &FrameWriter) {
        lock(&self.state).aborted = Some(cause);
        self.release(writer, true);
    }

    /// Releases the exchange. `was_sent` tells whether the executor has seen the request.
    pub(super) fn release(&self, writer: &FrameWriter, was_sent: bool) {
        let is_open = {
            let mut state = lock(&self.state);
            self.return_window(&mut state);
            state.permit.take().is_some()
        };
        if is_open {
            self.session.remove_stream(self.stream_id);
            if was_sent {
                let stream = self.stream_id;
                writer.push_frame(&ExecutorFrame::Cancel { stream });
            }
        }
    }

    fn return_window(&self, state: &mut HttpExchangeState) {
        if let Some(window) = state.window.take() {
            let left = u64::try_from(state.body.buffered_bytes()).unwrap_or(u64::MAX);
            self.session.subtract_waiting_bytes(left);
            self.session.budget().close_stream(&window);
        }
    }

    /// Fails the stream behind the queued chunks and sends a cancel to the executor.
    fn fail_stream(&self, state: &mut HttpExchangeState, writer: &FrameWriter, reason: &str) {
        state.fail(HttpError::Lost(reason.into()));
        let stream = self.stream_id;
        writer.push_frame(&ExecutorFrame::Cancel { stream });
    }
}

fn byte_count(bytes: &Bytes) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl HasWakerSlot for HttpExchangeState {
    fn waker_slot(&mut self) -> &mut WakerSlot {
        &mut self.waker_slot
    }
}

impl HttpExchangeState {
    fn fail(&mut self, cause: HttpError) {
        self.permit = None;
        self.body.fail(self.cause.get_or_insert(cause).clone());
    }

    /// Adds a chunk; returns its length.
    fn push_data(&mut self, offset: u64, bytes: Bytes) -> Result<u64, ChunkError> {
        let count = byte_count(&bytes);
        if let Some(window) = &mut self.window {
            window
                .record_arrival(count)
                .map_err(|_over| ChunkError::Overflow)?;
        }
        self.body.push_chunk(offset, bytes)?;
        Ok(count)
    }
}

impl ExecutorStream for HttpExchange {
    fn on_frame(&self, frame: ExecutorFrame, voice: &FrameWriter) -> FrameOutcome {
        let mut state = lock(&self.state);
        if state.permit.is_none() {
            return FrameOutcome::Closed;
        }
        match frame {
            ExecutorFrame::Response { head, .. } if matches!(state.head, HeadState::Pending) => {
                state.head = HeadState::Received(head);
                // The end may have arrived before the head.
                if state.body.is_finished() {
                    state.permit = None;
                }
            }
            ExecutorFrame::Data { offset, bytes, .. } => match state.push_data(offset, bytes) {
                Ok(count) => self.session.add_waiting_bytes(count),
                Err(ChunkError::Overflow) => {
                    self.fail_stream(&mut state, voice, "the executor sent more than it may");
                }
                Err(ChunkError::OutOfOrder { .. } | ChunkError::Late) => {
                    self.fail_stream(&mut state, voice, "a piece of the answer is out of place");
                }
            },
            ExecutorFrame::End {
                offset, trailers, ..
            } => match offset == state.body.next_number() && !state.body.is_finished() {
                true => {
                    state.body.finish();
                    state.trailers = trailers;
                    // The head may arrive after the body.
                    if !matches!(state.head, HeadState::Pending) {
                        state.permit = None;
                    }
                }
                false => {
                    self.fail_stream(&mut state, voice, "the end of the answer is out of place")
                }
            },
            ExecutorFrame::Credit { bytes, .. } => state.credit.add_bytes(bytes),
            ExecutorFrame::Fault { fault, .. } => state.fail(fault_map::to_http_error(&fault)),
            _ => self.fail_stream(
                &mut state,
                voice,
                "the executor sent what does not belong here",
            ),
        }
        let took = match state.permit {
            Some(_) => FrameOutcome::Open,
            None => FrameOutcome::Closed,
        };
        wake_waiter(state);
        took
    }

    fn on_disconnect(&self, reason: &DisconnectReason) -> CutOutcome {
        let mut state = lock(&self.state);
        state.fail(HttpError::Disconnected(reason.to_string().into()));
        wake_waiter(state);
        CutOutcome::Closed
    }

    fn resume_mark(&self) -> Option<StreamMark> {
        None
    }

    fn resume(&self, _mark: &StreamMark, _voice: &FrameWriter) {}

    fn on_gone(&self, reason: &str) {
        let mut state = lock(&self.state);
        state.fail(HttpError::Disconnected(reason.into()));
        wake_waiter(state);
    }
}
