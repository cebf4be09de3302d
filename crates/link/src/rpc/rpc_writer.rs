//! Writer task of a stdio link: writes whole messages only. The messages of every transport are
//! serialized here.

use std::sync::Arc;

use bowline_wire::jsonrpc::{flatten_lines, write_notification, write_request};
use bowline_wire::mcp::method;
use bowline_wire::splice::{to_literal, write_string};
use bowline_wire::{ByteSpan, ObjectEditor};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{RpcConnection, RpcPhase, StopMode};
use crate::link::{LinkExit, LinkRequest};

mod trace_params;

pub(crate) use trace_params::TracePlacement;

/// Small messages are joined into a single write up to this size, the capacity of a pipe.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Next step of the writer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriterStep {
    Write,
    Wait,
    Stop,
}

/// Writes queued messages until the link ends; returning closes the stream.
pub(crate) async fn write_loop<W: AsyncWrite + Unpin>(rpc: Arc<RpcConnection>, mut stream: W) {
    let mut batch = Vec::new();
    loop {
        match rpc.next_batch(&mut batch) {
            WriterStep::Wait => rpc.work.notified().await,
            WriterStep::Stop => return,
            WriterStep::Write => {
                // An unresponsive server blocks only this task, until the link ends.
                let written = tokio::select! {
                    biased;
                    written = write_batch(&mut stream, &batch) => written,
                    _ = rpc.wait_ending() => return,
                };
                if written.is_err() {
                    rpc.begin_shutdown(LinkExit::Closed, StopMode::Graceful);
                    return;
                }
            }
        }
    }
}

async fn write_batch<W: AsyncWrite + Unpin>(stream: &mut W, batch: &[u8]) -> std::io::Result<()> {
    stream.write_all(batch).await?;
    stream.flush().await
}

impl RpcConnection {
    /// Takes the messages to write now, counted as sent from here on; abandoned requests are
    /// skipped.
    pub(super) fn next_batch(&self, batch: &mut Vec<u8>) -> WriterStep {
        batch.clear();
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase != RpcPhase::Open {
            return WriterStep::Stop;
        }
        // Cancels go first, so a full queue cannot delay cancels.
        for cancel in state.cancels.drain(..) {
            write_cancelled(batch, cancel.id, cancel.reason);
        }
        for reply in state.replies.drain(..) {
            batch.extend_from_slice(&reply);
        }
        let mut frees_room = false;
        while let Some(next) = state.queue.front() {
            if !batch.is_empty() && batch.len() + next.bytes.len() > BATCH_BYTES_MAX {
                break;
            }
            let Some(next) = state.queue.pop_front() else {
                break;
            };
            frees_room = true;
            state.queue_bytes -= next.bytes.len();
            if next
                .id
                .is_some_and(|id| !state.requests.pending.mark_sent(id))
            {
                continue;
            }
            if batch.is_empty() {
                *batch = next.bytes;
            } else {
                batch.extend_from_slice(&next.bytes);
            }
        }
        drop(guard);
        if frees_room {
            self.room_freed.notify_waiters();
        }
        if batch.is_empty() {
            WriterStep::Wait
        } else {
            WriterStep::Write
        }
    }
}

/// Envelope bytes besides method and parameters.
const ENVELOPE_BYTES: usize = 80;

/// Returns a request with the link's own id.
pub(crate) fn request_frame(id: u64, request: &LinkRequest, placement: TracePlacement) -> Vec<u8> {
    let message = &request.message;
    let params = message.params.as_ref();
    let mut out = Vec::with_capacity(params.len() + request.method.len() + ENVELOPE_BYTES);
    let mut digits = itoa::Buffer::new();
    let mut editor = ObjectEditor::new(params);
    if let Some(rename) = &request.rename {
        editor.replace(ByteSpan::from_range(&rename.at), to_literal(&rename.to));
    }
    if let Some(at) = &message.progress_at {
        editor.replace(ByteSpan::from_range(at), digits.format(id).as_bytes());
    }
    if let Some(trace) = &message.trace {
        trace_params::add_trace(&mut editor, trace, placement);
    }
    let params = (!params.is_empty()).then(|| editor.edited());
    write_request(&mut out, id, &request.method, params);
    out.push(b'\n');
    out
}

/// Returns a notification.
pub(crate) fn notification_frame(method: &str, params: Option<&[u8]>) -> Vec<u8> {
    let room = params.unwrap_or_default().len() + method.len() + ENVELOPE_BYTES;
    let mut out = Vec::with_capacity(room);
    write_notification(&mut out, method, params);
    out.push(b'\n');
    out
}

/// Appends `notifications/cancelled` for a request.
pub(crate) fn write_cancelled(out: &mut Vec<u8>, id: u64, reason: &str) {
    let mut params = br#"{"requestId":"#.to_vec();
    params.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    params.extend_from_slice(br#","reason":"#);
    write_string(&mut params, reason);
    params.push(b'}');
    write_notification(out, method::CANCELLED, Some(&params));
    out.push(b'\n');
}

/// Makes the message one line: replaces line breaks in its whitespace and appends the line end.
pub(super) fn finish_line(message: &mut Vec<u8>) {
    flatten_lines(message);
    message.push(b'\n');
}
