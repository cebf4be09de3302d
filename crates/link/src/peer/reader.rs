//! Owns the stream from the server and brings every message to who waits for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::warn;

use super::lines::{Line, Lines};
use super::{Peer, Stop};
use crate::desk::{self, Events};
use crate::flood::{Allowance, cost};
use crate::link::{Exit, LinkError};
use crate::stderr::Stamps;

/// Noise is reported at most this often.
const NOISE_EVERY_MS: u64 = 1_000;

/// Reads until the stream or the link ends.
pub(crate) async fn read_loop<R: AsyncRead + Unpin>(
    peer: Arc<Peer>,
    events: Arc<Events>,
    stamps: Arc<Stamps>,
    mut stream: R,
) {
    let mut lines = Lines::new(peer.limits.line_bytes_max, peer.limits.discard_bytes_max);
    let mut reader = Reader {
        peer: &peer,
        events,
        stamps: &stamps,
        noise_reported: 0,
        noise_due_ms: 0,
        waste: 0,
    };
    let mut allowance = Allowance::new(desk::now());
    let mut ended = pin!(peer.ended());
    loop {
        let due = reader.events.is_due();
        let read = tokio::select! {
            biased;
            read = stream.read_buf(lines.room()) => read,
            _ = &mut ended => return,
            // A change that found no room waits for it here.
            () = reader.events.deliver(), if due => continue,
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
        while let Some(line) = lines.next(|| peer.large_bytes_max()) {
            match line {
                Line::Whole(line) => match peer.admits(&line) {
                    Ok(()) => reader.line(line),
                    Err(answers) => reader.too_long(answers),
                },
                Line::TooLong(line) => reader.too_long(line.answers()),
                Line::Overrun => {
                    warn!(server = %peer.server, "a line on stdout has no end");
                    peer.end(Exit::Overrun, Stop::AtOnce);
                    peer.fail(Exit::Overrun);
                    return;
                }
            }
        }
        let waste = std::mem::take(&mut reader.waste);
        if waste == 0 {
            continue;
        }
        if let Some(pause) = allowance.charge(desk::now(), waste) {
            if pause.is_first {
                warn!(server = %peer.server, "stdout is flooded and read slowly");
            }
            tokio::select! {
                () = tokio::time::sleep(pause.wait) => {}
                _ = &mut ended => return,
            }
        }
    }
    // A server that dies may leave out the last line end, but not the last brace.
    if let Some(rest) = lines.rest() {
        reader.line(rest);
    }
    peer.end(Exit::Closed, Stop::Orderly);
}

#[derive(Debug)]
struct Reader<'a> {
    peer: &'a Arc<Peer>,
    events: Arc<Events>,
    stamps: &'a Stamps,
    /// How many lines of noise were reported.
    noise_reported: u64,
    /// When noise may be reported again.
    noise_due_ms: u64,
    /// What the lines cost that nobody waits for.
    waste: u64,
}

impl Reader<'_> {
    fn line(&mut self, line: Bytes) {
        let (length, idle) = (line.len(), self.peer.in_flight() == 0);
        let before = self.peer.counts.wasted();
        self.take(line);
        if idle || self.peer.counts.wasted() != before {
            self.waste += cost(1, length);
        }
    }

    fn take(&mut self, line: Bytes) {
        for _ in 0..desk::take(self.peer, &self.events, line, None) {
            self.noise();
        }
    }

    /// Ends the wait of the one whose answer was thrown away.
    fn too_long(&mut self, answers: Option<u64>) {
        match answers {
            Some(id) => {
                let bytes_max = self.peer.response_bytes_max(id);
                desk::fail(self.peer.as_ref(), id, LinkError::TooLong { bytes_max });
            }
            None => {
                self.waste += cost(1, self.peer.limits.line_bytes_max);
                self.noise();
            }
        }
    }

    fn noise(&mut self) {
        let seen = self.peer.counts.noise.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = self.stamps.now_ms();
        if now_ms >= self.noise_due_ms {
            let lines = seen - self.noise_reported;
            warn!(server = %self.peer.server, lines, "stdout holds lines that are no messages");
            self.noise_reported = seen;
            self.noise_due_ms = now_ms + NOISE_EVERY_MS;
        }
    }
}
