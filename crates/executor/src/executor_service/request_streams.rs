//! Request streams of one connection, with flow control per stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bowline_core::error::ExecutionStatus;
use bowline_core::sync::lock;
use bowline_link::http::http_client::{BodyChunks, HttpError};
use bowline_runtime::Work;

use crate::connection::FrameWriter;
use crate::flow::{FlowBudget, FlowLimits, SendCredit, StreamWindow};
use crate::frames::{ExecutorFrame, RequestHead, StreamFault, StreamFaultCode};
use crate::reassembly::{
    ChunkError, ChunkNumbering, OverflowPolicy, ReassemblyBuffer, ReassemblyItem, ReassemblyLimits,
};
use bytes::Bytes;

/// Buffered chunks of an upload; beyond the limit chunks are joined.
const PIECES_MAX: usize = 256;

/// All requests of a connection.
#[derive(Debug)]
pub(super) struct RequestStreams {
    table: Mutex<RequestStreamTable>,
    limits: FlowLimits,
    writer: FrameWriter,
}

#[derive(Debug)]
struct RequestStreamTable {
    live: HashMap<u64, Arc<RequestStream>>,
    budget: FlowBudget,
    /// No further requests.
    is_closed: bool,
}

/// One request.
#[derive(Debug)]
pub(super) struct RequestStream {
    pub(super) number: u64,
    /// Wakes the exchange on a stop.
    state: Work<RequestStreamState>,
}

#[derive(Debug)]
struct RequestStreamState {
    upload: ReassemblyBuffer<HttpError>,
    /// Absent once the stream is closed.
    window: Option<StreamWindow>,
    /// Trailers of the request body.
    trailers: Bytes,
    /// Waits for upload data.
    reader: Option<Waker>,
    credit: SendCredit,
    /// Waits for credit.
    writer: Option<Waker>,
    stop_reason: Option<StopReason>,
}

/// Why a request was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Cancelled by the gateway.
    Cancelled,
    /// Failed; the fault is sent to the gateway.
    Fault(StreamFault),
}

/// Why a stream cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamOpenError {
    /// Too many requests.
    Busy,
    /// The stream number is in use.
    InUse,
    /// The connection is closed.
    Closed,
}

impl RequestStreams {
    pub(super) fn new(limits: FlowLimits, writer: FrameWriter) -> Self {
        let table = RequestStreamTable {
            live: HashMap::new(),
            budget: FlowBudget::new(limits),
            is_closed: false,
        };
        Self {
            table: Mutex::new(table),
            limits,
            writer,
        }
    }

    /// Opens a stream. A body that may exceed the initial credit gets more credit at once.
    pub(super) fn open_stream(
        &self,
        number: u64,
        request_head: &RequestHead,
    ) -> Result<Arc<RequestStream>, StreamOpenError> {
        let mut table = lock(&self.table);
        if table.is_closed {
            return Err(StreamOpenError::Closed);
        }
        if table.live.contains_key(&number) {
            return Err(StreamOpenError::InUse);
        }
        let window = table.budget.open_stream().ok_or(StreamOpenError::Busy)?;
        let more = window.size().saturating_sub(self.limits.stream_floor());
        let room = ReassemblyLimits {
            chunks_max: PIECES_MAX,
            bytes_max: usize::try_from(self.limits.stream_bytes_max).unwrap_or(usize::MAX),
            overflow: OverflowPolicy::Merge,
        };
        let state = RequestStreamState {
            upload: ReassemblyBuffer::new(ChunkNumbering::ByByte, room),
            window: Some(window),
            trailers: Bytes::new(),
            reader: None,
            credit: SendCredit::new(request_head.credit),
            writer: None,
            stop_reason: None,
        };
        let stream = Arc::new(RequestStream {
            number,
            state: Work::new(state),
        });
        table.live.insert(number, Arc::clone(&stream));
        drop(table);
        let is_short = request_head
            .body_len
            .is_some_and(|bytes| bytes <= self.limits.stream_floor());
        if more > 0 && !is_short {
            self.writer.push_frame(&ExecutorFrame::Credit {
                stream: number,
                bytes: more,
            });
        }
        Ok(stream)
    }

    /// Returns an open stream.
    pub(super) fn get(&self, number: u64) -> Option<Arc<RequestStream>> {
        lock(&self.table).live.get(&number).cloned()
    }

    /// Closes a stream and releases the window, before the end frame is sent.
    pub(super) fn release_stream(&self, stream: &RequestStream) {
        let window = lock(&stream.state).window.take();
        let mut table = lock(&self.table);
        if let Some(window) = window {
            table.budget.close_stream(&window);
            table.live.remove(&stream.number);
        }
    }

    /// Stops a request; the window is released at once.
    pub(super) fn stop_stream(&self, stream: &RequestStream, reason: StopReason) {
        self.release_stream(stream);
        let mut state = lock(&stream.state);
        state.stop_reason.get_or_insert(reason);
        drop(state);
        stream.state.wake();
    }

    /// Buffers an upload chunk. An invalid chunk ends only this stream.
    pub(super) fn push_data(&self, stream: &RequestStream, offset: u64, bytes: Bytes) {
        let mut state = lock(&stream.state);
        let Some(window) = &mut state.window else {
            return;
        };
        let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let outcome = match window.record_arrival(count) {
            Err(_overdrawn) => Err(ChunkError::Overflow),
            Ok(()) => state.upload.push_chunk(offset, bytes),
        };
        let reader = state.reader.take();
        drop(state);
        self.check_chunk(stream, outcome);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ends the upload.
    pub(super) fn push_end(&self, stream: &RequestStream, offset: u64, trailers: Bytes) {
        let mut state = lock(&stream.state);
        let expected = state.upload.next_number();
        let outcome = match expected == offset {
            true => {
                state.trailers = trailers;
                state.upload.finish();
                Ok(())
            }
            false => Err(ChunkError::OutOfOrder {
                expected,
                found: offset,
            }),
        };
        let reader = state.reader.take();
        drop(state);
        self.check_chunk(stream, outcome);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Stops the stream after an invalid chunk: the missing data cannot be forwarded.
    fn check_chunk(&self, stream: &RequestStream, outcome: Result<(), ChunkError>) {
        let (code, reason) = match outcome {
            Ok(()) | Err(ChunkError::Late) => return,
            Err(ChunkError::Overflow) => (StreamFaultCode::Overflow, "more came than was allowed"),
            Err(ChunkError::OutOfOrder { .. }) => (
                StreamFaultCode::Order,
                "a piece of the request has no place",
            ),
        };
        let fault = StreamFault {
            code,
            execution: ExecutionStatus::Unknown,
            reason: reason.into(),
        };
        self.stop_stream(stream, StopReason::Fault(fault));
    }

    /// Records forwarded upload bytes, and grants the gateway more credit.
    fn grant_credit(&self, stream: &RequestStream, state: &mut RequestStreamState, bytes: usize) {
        let Some(window) = &mut state.window else {
            return;
        };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let more = lock(&self.table).budget.record_read(window, bytes);
        // A complete upload needs no more credit.
        if let Some(bytes) = more
            && !state.upload.is_finished()
        {
            self.writer.push_frame(&ExecutorFrame::Credit {
                stream: stream.number,
                bytes,
            });
        }
    }

    /// Stops all requests without a frame: the connection is closed.
    pub(super) fn shut_down(&self) {
        self.stop_all();
    }

    /// Stops all requests with a fault: the connection is about to close.
    pub(super) fn fail_all(&self, fault: &StreamFault) {
        for stream in self.stop_all() {
            self.writer.push_frame(&ExecutorFrame::Fault {
                stream: stream.number,
                fault: fault.clone(),
            });
        }
    }

    fn stop_all(&self) -> Vec<Arc<RequestStream>> {
        let mut table = lock(&self.table);
        table.is_closed = true;
        let live: Vec<_> = table.live.values().cloned().collect();
        drop(table);
        for stream in &live {
            self.stop_stream(stream, StopReason::Cancelled);
        }
        live
    }
}

impl RequestStream {
    /// Adds credit for the response body.
    pub(super) fn add_credit(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.credit.add_bytes(bytes);
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
    }

    /// Returns the available credit, once nonzero.
    pub(super) fn poll_credit(&self, cx: &mut Context<'_>) -> Poll<u64> {
        let mut state = lock(&self.state);
        match state.credit.remaining_bytes() {
            0 => {
                state.writer = Some(cx.waker().clone());
                Poll::Pending
            }
            left => Poll::Ready(left),
        }
    }

    /// Takes up to `wanted` bytes of credit.
    pub(super) fn take_credit(&self, wanted: usize) -> usize {
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let taken = lock(&self.state).credit.take_up_to(wanted);
        usize::try_from(taken).unwrap_or(usize::MAX)
    }

    /// Waits for the stop.
    pub(super) async fn wait_stopped(&self) -> StopReason {
        loop {
            if let Some(reason) = lock(&self.state).stop_reason.clone() {
                return reason;
            }
            self.state.wait().await;
        }
    }
}

/// The request body, streamed from the gateway.
#[derive(Debug)]
pub(super) struct UploadBody {
    pub(super) streams: Arc<RequestStreams>,
    pub(super) stream: Arc<RequestStream>,
}

impl BodyChunks for UploadBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut state = lock(&self.stream.state);
        match state.upload.next_item() {
            Some(ReassemblyItem::Chunk(piece)) => {
                self.streams
                    .grant_credit(&self.stream, &mut state, piece.len());
                Poll::Ready(Some(Ok(piece)))
            }
            Some(ReassemblyItem::End) => Poll::Ready(None),
            Some(ReassemblyItem::Failed(error)) => Poll::Ready(Some(Err(error))),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn take_trailers(&mut self) -> Bytes {
        std::mem::take(&mut lock(&self.stream.state).trailers)
    }
}
