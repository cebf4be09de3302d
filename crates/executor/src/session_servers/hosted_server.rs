//! One server on the executor: buffers between the process pipes and the gateway.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bowline_core::sync::lock;
use bowline_link::LinkExit;

use crate::connection::{FrameWriter, encode_exit};
use crate::frames::{
    self, DATA_BYTES_MAX, ExecutorFrame, SERVER_WINDOW_BYTES, StreamFault, StreamMark,
};
use crate::reassembly::ReassemblyItem;
use crate::resume::{RESEND_BYTES_MAX, ResumableReceiver, ResumableSender};
use bytes::Bytes;
use tokio::sync::watch;

use super::closing_fault;

/// Stderr buffered for the gateway; beyond the limit the oldest pieces are dropped.
const STDERR_BYTES_MAX: usize = 64 * 1024;

/// A server of a session.
#[derive(Debug)]
pub(super) struct HostedServer {
    pub(super) stream: u64,
    state: Mutex<HostedServerState>,
    /// Requested stop mode.
    stop_mode: watch::Sender<StopMode>,
}

/// How to stop a server. A later variant overrides an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopMode {
    /// Keep running.
    None,
    /// Stop gracefully.
    Graceful,
    /// Kill.
    Immediate,
    /// Kill, and send no further frames.
    Discard,
}

/// Final state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostedServerEnd {
    Exited(LinkExit),
    Failed(StreamFault),
}

#[derive(Debug)]
struct HostedServerState {
    /// Frame writer of the current connection.
    writer: Option<FrameWriter>,
    pid: Option<u32>,
    stdin: ResumableReceiver<()>,
    stdin_waker: Option<Waker>,
    stdout: ResumableSender,
    stdout_waker: Option<Waker>,
    is_stdout_over: bool,
    stderr: VecDeque<Bytes>,
    /// Invariant: the sum of the lengths in `stderr`.
    stderr_bytes: usize,
    end: Option<HostedServerEnd>,
}

impl HostedServer {
    /// Returns a server about to start, with `credit` bytes for the output.
    pub(super) fn new(stream: u64, credit: u64, writer: FrameWriter) -> Self {
        Self {
            stream,
            state: Mutex::new(HostedServerState {
                writer: Some(writer),
                pid: None,
                stdin: ResumableReceiver::new(SERVER_WINDOW_BYTES),
                stdin_waker: None,
                // The buffer is bounded here, whatever the gateway grants.
                stdout: ResumableSender::new(credit.min(SERVER_WINDOW_BYTES)),
                stdout_waker: None,
                is_stdout_over: false,
                stderr: VecDeque::new(),
                stderr_bytes: 0,
                end: None,
            }),
            stop_mode: watch::Sender::new(StopMode::None),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, HostedServerState> {
        lock(&self.state)
    }

    /// Resumes at the gateway's mark and returns the local mark; `None` if the requested bytes are
    /// no longer buffered.
    pub(super) fn resume(&self, mark: &StreamMark) -> Option<StreamMark> {
        let mut state = self.lock_state();
        state.stdout.resume(mark.received, mark.credit).ok()?;
        let (received, credit) = state.stdin.resume_point();
        Some(StreamMark {
            stream: self.stream,
            received,
            credit,
        })
    }

    /// Attaches a connection and repeats every frame that the gateway may have missed.
    pub(super) fn attach_writer(&self, writer: &FrameWriter) {
        let mut guard = self.lock_state();
        let state = &mut *guard;
        let stream = self.stream;
        state.writer = Some(writer.clone());
        if let Some(pid) = state.pid {
            writer.push_frame(&ExecutorFrame::ServerStarted { stream, pid });
        }
        for (place, piece) in state.stdout.unconfirmed_chunks(RESEND_BYTES_MAX) {
            writer.push_message(frames::data_frame(stream, place, &piece));
        }
        if let Some(bytes) = state.stdin.credit_since_mark() {
            writer.push_frame(&ExecutorFrame::Credit { stream, bytes });
        }
        self.flush_stderr(state);
        if state.is_stdout_over {
            writer.push_frame(&self.stdout_end_frame(state));
        }
        if let Some(last) = &state.end {
            writer.push_frame(&self.end_frame(last));
        }
        let waker = state.stdout_waker.take();
        drop(guard);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) fn detach_writer(&self) {
        self.lock_state().writer = None;
    }

    /// Buffers input.
    pub(super) fn push_input(&self, offset: u64, bytes: Bytes) {
        let mut state = self.lock_state();
        let is_fit = state.stdin.push_chunk(offset, bytes).is_ok();
        self.apply_input(state, is_fit);
    }

    /// Ends the input.
    pub(super) fn close_input(&self, offset: u64) {
        let mut state = self.lock_state();
        let is_fit = state.stdin.finish(offset).is_ok();
        self.apply_input(state, is_fit);
    }

    fn apply_input(&self, mut state: MutexGuard<'_, HostedServerState>, is_fit: bool) {
        if !is_fit {
            state.stdin.fail(());
        }
        let waker = state.stdin_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        if !is_fit {
            tracing::warn!(stream = self.stream, "gap in the input of a server");
            self.request_stop(StopMode::Immediate);
        }
    }

    /// Adds credit for output.
    pub(super) fn add_credit(&self, bytes: u64) {
        let mut state = self.lock_state();
        state.stdout.add_credit(bytes);
        let waker = state.stdout_waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Requests a stop. The mode only escalates.
    pub(super) fn request_stop(&self, mode: StopMode) {
        self.stop_mode.send_if_modified(|now| {
            let is_more = mode > *now;
            *now = mode.max(*now);
            is_more
        });
        if mode == StopMode::Discard {
            let mut state = self.lock_state();
            state.writer = None;
            let waker = state.stdout_waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits for a stop request of at least this mode.
    pub(super) async fn wait_stop(&self, least: StopMode) {
        let mut modes = self.stop_mode.subscribe();
        // The sender lives in `self`, so the channel cannot close.
        let _ = modes.wait_for(|now| *now >= least).await;
    }

    /// Reports the start of the process.
    pub(super) fn report_started(&self, pid: u32) {
        let mut state = self.lock_state();
        state.pid = Some(pid);
        let stream = self.stream;
        send_frame(&state, &ExecutorFrame::ServerStarted { stream, pid });
    }

    /// Returns the next piece of input and grants more credit; `None` at the end.
    pub(super) async fn next_input(&self) -> Option<Bytes> {
        poll_fn(|cx| {
            let mut state = self.lock_state();
            let Some((item, credit)) = state.stdin.next_item() else {
                state.stdin_waker = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if let Some(bytes) = credit {
                let stream = self.stream;
                send_frame(&state, &ExecutorFrame::Credit { stream, bytes });
            }
            match item {
                ReassemblyItem::Chunk(piece) => Poll::Ready(Some(piece)),
                ReassemblyItem::End | ReassemblyItem::Failed(()) => Poll::Ready(None),
            }
        })
        .await
    }

    /// Waits for credit and returns the number of bytes to read; 0 if the server is discarded.
    pub(super) async fn wait_output_room(&self) -> usize {
        poll_fn(|cx| {
            let mut state = self.lock_state();
            if *self.stop_mode.borrow() == StopMode::Discard {
                return Poll::Ready(0);
            }
            match usize::try_from(state.stdout.credit_left()).unwrap_or(usize::MAX) {
                0 => {
                    state.stdout_waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                room => Poll::Ready(room.min(DATA_BYTES_MAX)),
            }
        })
        .await
    }

    /// Whether output waits for credit.
    pub(super) fn is_output_held(&self) -> bool {
        let state = self.lock_state();
        !state.is_stdout_over && state.stdout.credit_left() == 0
    }

    /// Sends output within the credit.
    pub(super) fn send_output(&self, bytes: &[u8]) {
        let mut state = self.lock_state();
        let offset = state.stdout.push_bytes(bytes);
        if let Some(writer) = &state.writer {
            writer.push_message(frames::data_frame(self.stream, offset, bytes));
        }
    }

    /// Reports the end of stdout.
    pub(super) fn finish_output(&self) {
        let mut state = self.lock_state();
        if !std::mem::replace(&mut state.is_stdout_over, true) {
            let frame = self.stdout_end_frame(&state);
            send_frame(&state, &frame);
        }
    }

    /// Sends stderr, as far as the connection has room.
    pub(super) fn send_stderr(&self, bytes: &[u8]) {
        let mut guard = self.lock_state();
        let state = &mut *guard;
        state.stderr_bytes += bytes.len();
        state.stderr.push_back(Bytes::copy_from_slice(bytes));
        while state.stderr_bytes > STDERR_BYTES_MAX
            && let Some(oldest) = state.stderr.pop_front()
        {
            state.stderr_bytes -= oldest.len();
        }
        self.flush_stderr(state);
    }

    fn flush_stderr(&self, state: &mut HostedServerState) {
        let (Some(writer), stream) = (&state.writer, self.stream) else {
            return;
        };
        while let Some(bytes) = state.stderr.pop_front() {
            let frame = ExecutorFrame::Stderr {
                stream,
                bytes: bytes.clone(),
            };
            if writer.try_send(frame.to_bytes()).is_err() {
                return state.stderr.push_front(bytes);
            }
            state.stderr_bytes -= bytes.len();
        }
    }

    /// Reports the final state, kept until the gateway acknowledges.
    pub(super) fn report_end(&self, end: HostedServerEnd) {
        let mut guard = self.lock_state();
        let state = &mut *guard;
        self.flush_stderr(state);
        send_frame(state, &self.end_frame(&end));
        state.end = Some(end);
    }

    /// Reports the shutdown of the executor, if connected.
    pub(super) fn report_closing(&self) {
        let state = self.lock_state();
        if state.end.is_none() {
            send_frame(
                &state,
                &self.end_frame(&HostedServerEnd::Failed(closing_fault())),
            );
        }
    }

    fn end_frame(&self, end: &HostedServerEnd) -> ExecutorFrame {
        let stream = self.stream;
        match end {
            HostedServerEnd::Exited(exit) => ExecutorFrame::ServerExit {
                stream,
                exit: encode_exit(*exit),
            },
            HostedServerEnd::Failed(fault) => ExecutorFrame::Fault {
                stream,
                fault: fault.clone(),
            },
        }
    }

    fn stdout_end_frame(&self, state: &HostedServerState) -> ExecutorFrame {
        ExecutorFrame::End {
            stream: self.stream,
            offset: state.stdout.sent_bytes(),
            trailers: Bytes::new(),
        }
    }
}

/// Sends a frame if connected; otherwise `attach_writer` repeats the state later.
fn send_frame(state: &HostedServerState, frame: &ExecutorFrame) {
    if let Some(voice) = &state.writer {
        voice.push_frame(frame);
    }
}
