//! Writer task of a stdio link: writes whole messages only.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{RpcConnection, RpcPhase, StopMode, rpc_frame};
use crate::link::LinkExit;

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
            rpc_frame::write_cancelled(batch, cancel.id, cancel.reason);
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
