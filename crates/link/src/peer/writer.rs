//! Owns the stream to the server and writes whole messages only.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Peer, Phase, Stop, frame};
use crate::link::Exit;

/// Small messages are joined into one write up to this size: what a pipe takes at once.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// What the writer does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Write,
    Wait,
    Stop,
}

/// Writes what is queued until the link ends; returning closes the stream.
pub(crate) async fn write_loop<W: AsyncWrite + Unpin>(peer: Arc<Peer>, mut stream: W) {
    let mut batch = Vec::new();
    loop {
        match peer.next_batch(&mut batch) {
            Next::Wait => peer.work.notified().await,
            Next::Stop => return,
            Next::Write => {
                // A server that does not read holds up this task alone, and not its end.
                let written = tokio::select! {
                    biased;
                    written = write(&mut stream, &batch) => written,
                    _ = peer.ending() => return,
                };
                if written.is_err() {
                    peer.end(Exit::Closed, Stop::Orderly);
                    return;
                }
            }
        }
    }
}

async fn write<W: AsyncWrite + Unpin>(stream: &mut W, batch: &[u8]) -> std::io::Result<()> {
    stream.write_all(batch).await?;
    stream.flush().await
}

impl Peer {
    /// Takes what is to be written now. Everything in it counts as sent from here on; requests
    /// that nobody waits for are left out.
    pub(super) fn next_batch(&self, batch: &mut Vec<u8>) -> Next {
        batch.clear();
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase != Phase::Open {
            return Next::Stop;
        }
        // What takes requests back goes first, so that a full queue cannot hold it up.
        for cancel in state.cancels.drain(..) {
            frame::write_cancelled(batch, cancel.id, cancel.reason);
        }
        for reply in state.replies.drain(..) {
            batch.extend_from_slice(&reply);
        }
        let mut taken = false;
        while let Some(next) = state.queue.front() {
            if !batch.is_empty() && batch.len() + next.bytes.len() > BATCH_BYTES_MAX {
                break;
            }
            let Some(next) = state.queue.pop_front() else {
                break;
            };
            taken = true;
            state.queue_bytes -= next.bytes.len();
            if next
                .id
                .is_some_and(|id| !state.waiters.pending.mark_sent(id))
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
        if taken {
            self.room.notify_waiters();
        }
        if batch.is_empty() {
            Next::Wait
        } else {
            Next::Write
        }
    }
}
