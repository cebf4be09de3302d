//! A server process at an executor: its streams and its exit.
//!
//! A lost connection does not end the process. Written bytes are kept until acknowledged, and both
//! directions resume at the byte of the interruption.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bowline_core::sync::lock;
use bowline_link::LinkExit;
use bowline_link::websocket::DisconnectReason;

use crate::frames::{
    self, DATA_BYTES_MAX, ExecutorFrame, SERVER_WINDOW_BYTES, StreamFault, StreamFaultCode,
    StreamMark,
};
use crate::reassembly::ReassemblyItem;
use crate::resume::{RESEND_BYTES_MAX, ResumableReceiver, ResumableSender};
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::executor_session::{CutOutcome, ExecutorSession, ExecutorStream, FrameOutcome};
use super::exit_codec;
use super::frame_writer::FrameWriter;

mod remote_process;
mod start_server;

pub use remote_process::{RemoteOutput, RemoteProcess, RemoteStdin};

/// Unread bytes of stderr; more is dropped.
const STDERR_BYTES_MAX: usize = 256 * 1024;

/// One remote server, as its session sees it.
#[derive(Debug)]
struct RemoteServer {
    stream_id: u64,
    session: Arc<ExecutorSession>,
    state: Mutex<RemoteServerState>,
    /// Mirrors the state for waiting tasks.
    status: watch::Sender<RemoteStatus>,
}

#[derive(Debug)]
struct RemoteServerState {
    /// Writer of the current connection.
    writer: Option<FrameWriter>,
    stdin: ResumableSender,
    stdin_waker: Option<Waker>,
    /// No more input is written.
    is_stdin_closed: bool,
    stdout: ResumableReceiver<()>,
    stdout_waker: Option<Waker>,
    stderr: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `stderr`.
    stderr_bytes: usize,
    stderr_waker: Option<Waker>,
    pid: u32,
    /// Stop request: immediate or graceful.
    stop: Option<ImmediateStop>,
    is_finished: bool,
    /// Stream permit of the executor.
    permit: Option<OwnedSemaphorePermit>,
}

/// `true` for a kill, `false` for a graceful stop.
type ImmediateStop = bool;

/// Progress of a remote server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RemoteStatus {
    /// Whether a connection exists.
    is_connected: bool,
    stage: RemoteStage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RemoteStage {
    /// The start was requested.
    Requested,
    /// The process runs.
    Running,
    /// The process has exited.
    Exited(LinkExit, Option<StreamFault>),
}

impl RemoteServer {
    fn new(
        stream_id: u64,
        session: Arc<ExecutorSession>,
        writer: FrameWriter,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            stream_id,
            session,
            state: Mutex::new(RemoteServerState {
                writer: Some(writer),
                stdin: ResumableSender::new(SERVER_WINDOW_BYTES),
                stdin_waker: None,
                is_stdin_closed: false,
                stdout: ResumableReceiver::new(SERVER_WINDOW_BYTES),
                stdout_waker: None,
                stderr: VecDeque::new(),
                stderr_bytes: 0,
                stderr_waker: None,
                pid: 0,
                stop: None,
                is_finished: false,
                permit: Some(permit),
            }),
            status: watch::Sender::new(RemoteStatus {
                is_connected: true,
                stage: RemoteStage::Requested,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RemoteServerState> {
        lock(&self.state)
    }

    fn send_frame(&self, state: &RemoteServerState, frame: &ExecutorFrame) {
        // Without a connection, `resume` sends the frame later.
        if let Some(writer) = &state.writer {
            writer.push_frame(frame);
        }
    }

    /// Finishes the server; the first exit counts. Buffered output stays readable.
    fn finish(&self, exit: LinkExit, fault: Option<StreamFault>) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_finished, true) {
            return;
        }
        state.stdout.fail(());
        state.permit = None;
        // The executor may release the stream.
        let stream = self.stream_id;
        self.send_frame(&state, &ExecutorFrame::Cancel { stream });
        state.writer = None;
        let wakers = [
            state.stdin_waker.take(),
            state.stdout_waker.take(),
            state.stderr_waker.take(),
        ];
        self.status
            .send_modify(|status| status.stage = RemoteStage::Exited(exit, fault));
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Writes as many bytes as the executor accepts now.
    fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if state.is_finished || state.is_stdin_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = usize::try_from(state.stdin.credit_left()).unwrap_or(usize::MAX);
        let count = bytes.len().min(room).min(DATA_BYTES_MAX);
        let piece = bytes.get(..count).unwrap_or_default();
        if piece.is_empty() && !bytes.is_empty() {
            state.stdin_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let offset = state.stdin.push_bytes(piece);
        if let Some(writer) = &state.writer {
            writer.push_message(frames::data_frame(self.stream_id, offset, piece));
        }
        Poll::Ready(Ok(piece.len()))
    }

    /// Closes stdin.
    fn close_stdin(&self) {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.is_stdin_closed, true) && !state.is_finished {
            let frame = self.stdin_end_frame(&state);
            self.send_frame(&state, &frame);
        }
    }

    fn stdin_end_frame(&self, state: &RemoteServerState) -> ExecutorFrame {
        ExecutorFrame::End {
            stream: self.stream_id,
            offset: state.stdin.sent_bytes(),
            trailers: Bytes::new(),
        }
    }

    /// Polls for the next chunk of stdout; `None` at the end.
    fn poll_stdout(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        let Some((item, more)) = state.stdout.next_item() else {
            state.stdout_waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if let Some(bytes) = more {
            let stream = self.stream_id;
            self.send_frame(&state, &ExecutorFrame::Credit { stream, bytes });
        }
        match item {
            ReassemblyItem::Chunk(piece) => Poll::Ready(Some(piece)),
            ReassemblyItem::End | ReassemblyItem::Failed(()) => Poll::Ready(None),
        }
    }

    /// Polls for the next chunk of stderr; `None` at the end.
    fn poll_stderr(&self, cx: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.lock();
        if let Some(piece) = state.stderr.pop_front() {
            state.stderr_bytes -= piece.len();
            return Poll::Ready(Some(piece));
        }
        if state.is_finished {
            return Poll::Ready(None);
        }
        state.stderr_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Requests a stop. A graceful stop can become immediate, never the reverse.
    fn request_stop(&self, at_once: ImmediateStop) {
        let mut state = self.lock();
        if state.is_finished || state.stop.is_some_and(|so| so || !at_once) {
            return;
        }
        state.stop = Some(at_once);
        let stream = self.stream_id;
        self.send_frame(&state, &ExecutorFrame::StopServer { stream, at_once });
    }

    /// Adds output; `false` if the offset does not fit.
    fn push_stdout(&self, offset: u64, bytes: Bytes) -> bool {
        let mut state = self.lock();
        let is_fit = state.stdout.push_chunk(offset, bytes).is_ok();
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        is_fit
    }

    fn end_stdout(&self, offset: u64) -> bool {
        let mut state = self.lock();
        let is_fit = state.stdout.finish(offset).is_ok();
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        is_fit
    }

    fn push_stderr(&self, bytes: Bytes) {
        let mut state = self.lock();
        if state.is_finished || state.stderr_bytes + bytes.len() > STDERR_BYTES_MAX {
            return;
        }
        state.stderr_bytes += bytes.len();
        state.stderr.push_back(bytes);
        let waker = state.stderr_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn add_stdin_credit(&self, bytes: u64) {
        let mut state = self.lock();
        state.stdin.add_credit(bytes);
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn mark_started(&self, pid: u32) {
        self.lock().pid = pid;
        self.status.send_if_modified(|status| {
            let is_first = status.stage == RemoteStage::Requested;
            if is_first {
                status.stage = RemoteStage::Running;
            }
            is_first
        });
    }
}

impl ExecutorStream for RemoteServer {
    fn on_frame(&self, frame: ExecutorFrame, _voice: &FrameWriter) -> FrameOutcome {
        let is_fit = match frame {
            ExecutorFrame::ServerStarted { pid, .. } => {
                self.mark_started(pid);
                true
            }
            ExecutorFrame::Data { offset, bytes, .. } => self.push_stdout(offset, bytes),
            ExecutorFrame::End { offset, .. } => self.end_stdout(offset),
            ExecutorFrame::Credit { bytes, .. } => {
                self.add_stdin_credit(bytes);
                true
            }
            ExecutorFrame::Stderr { bytes, .. } => {
                self.push_stderr(bytes);
                true
            }
            ExecutorFrame::ServerExit { exit, .. } => {
                self.finish(exit_codec::decode_exit(&exit), None);
                return FrameOutcome::Closed;
            }
            ExecutorFrame::Fault { fault, .. } => {
                let exit = match fault.code {
                    StreamFaultCode::Closing => LinkExit::Away,
                    _ => LinkExit::Gone,
                };
                self.finish(exit, Some(fault));
                return FrameOutcome::Closed;
            }
            // Frames that servers do not use.
            _ => true,
        };
        if is_fit {
            return FrameOutcome::Open;
        }
        tracing::warn!(stream = self.stream_id, "server output has a gap");
        self.finish(LinkExit::Gone, None);
        FrameOutcome::Closed
    }

    fn on_disconnect(&self, _reason: &DisconnectReason) -> CutOutcome {
        let mut state = self.lock();
        if state.is_finished {
            return CutOutcome::Closed;
        }
        state.writer = None;
        // The permit belonged to the lost connection.
        state.permit = None;
        self.status
            .send_modify(|status| status.is_connected = false);
        CutOutcome::Resumable
    }

    fn resume_mark(&self) -> Option<StreamMark> {
        let mut state = self.lock();
        if state.is_finished {
            return None;
        }
        let (received, credit) = state.stdout.resume_point();
        Some(StreamMark {
            stream: self.stream_id,
            received,
            credit,
        })
    }

    fn resume(&self, mark: &StreamMark, writer: &FrameWriter) {
        let mut state = self.lock();
        if state.is_finished {
            return;
        }
        state.writer = Some(writer.clone());
        if state.stdin.resume(mark.received, mark.credit).is_err() {
            drop(state);
            tracing::warn!(
                stream = self.stream_id,
                "cannot resume stream: server input has a gap"
            );
            return self.on_gone("requested bytes are no longer buffered");
        }
        for (offset, piece) in state.stdin.unconfirmed_chunks(RESEND_BYTES_MAX) {
            writer.push_message(frames::data_frame(self.stream_id, offset, &piece));
        }
        let stream = self.stream_id;
        if state.is_stdin_closed {
            writer.push_frame(&self.stdin_end_frame(&state));
        }
        if let Some(at_once) = state.stop {
            writer.push_frame(&ExecutorFrame::StopServer { stream, at_once });
        }
        if let Some(bytes) = state.stdout.credit_since_mark() {
            writer.push_frame(&ExecutorFrame::Credit { stream, bytes });
        }
        self.status.send_modify(|status| status.is_connected = true);
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    fn on_gone(&self, _reason: &str) {
        self.finish(LinkExit::Away, None);
    }
}
