//! Reader task of a stdio link: splits the output of the server into lines, in bounded memory, and
//! dispatches every line.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_wire::{MessageKind, RpcMessage};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::warn;

use super::overlong_line::OverlongLine;
use super::{RpcConnection, StopMode};
use crate::demux::{self, LinkEventSender};
use crate::link::{LinkError, LinkExit};
use crate::read_throttle::{ReadThrottle, noise_cost};
use crate::stderr::LogSequencer;

/// Interval of noise reports.
const NOISE_REPORT_INTERVAL_MS: u64 = 1_000;

/// Reads until the stream or the link ends.
pub(crate) async fn read_loop<R: AsyncRead + Unpin>(
    rpc: Arc<RpcConnection>,
    events: Arc<LinkEventSender>,
    sequencer: Arc<LogSequencer>,
    mut stream: R,
) {
    let mut lines = LineBuffer::new(rpc.limits.line_bytes_max, rpc.limits.discard_bytes_max);
    let mut reader = RpcReader {
        rpc: &rpc,
        events,
        sequencer: &sequencer,
        noise_reported: 0,
        noise_due_ms: 0,
        waste: 0,
    };
    let mut throttle = ReadThrottle::new(demux::now());
    let mut ended = pin!(rpc.wait_ended());
    loop {
        let due = reader.events.has_due();
        let read = tokio::select! {
            biased;
            read = stream.read_buf(lines.read_buffer()) => read,
            _ = &mut ended => return,
            // Deliver events that found the channel full.
            () = reader.events.deliver_due(), if due => continue,
        };
        if !matches!(read, Ok(1..)) {
            break;
        }
        while let Some(line) = lines.next(|| rpc.large_bytes_max()) {
            match line {
                BufferedLine::Whole(line) => match rpc.check_line_length(&line) {
                    Ok(()) => reader.handle_line(line),
                    Err(response_id) => reader.fail_too_long(response_id),
                },
                BufferedLine::TooLong(line) => reader.fail_too_long(line.response_id()),
                BufferedLine::Overrun => {
                    warn!(server = %rpc.server, "stdout line exceeds the discard limit");
                    rpc.begin_shutdown(LinkExit::Overrun, StopMode::Immediate);
                    rpc.fail_pending(LinkExit::Overrun);
                    return;
                }
            }
        }
        let waste = std::mem::take(&mut reader.waste);
        if waste == 0 {
            continue;
        }
        if let Some(pause) = throttle.charge(demux::now(), waste) {
            if pause.is_first {
                warn!(server = %rpc.server, "stdout is flooded; reading slowly");
            }
            tokio::select! {
                () = tokio::time::sleep(pause.wait) => {}
                _ = &mut ended => return,
            }
        }
    }
    // A dying server may omit the last line end, but not the last brace.
    if let Some(rest) = lines.take_rest() {
        reader.handle_line(rest);
    }
    rpc.begin_shutdown(LinkExit::Closed, StopMode::Graceful);
}

#[derive(Debug)]
struct RpcReader<'a> {
    rpc: &'a Arc<RpcConnection>,
    events: Arc<LinkEventSender>,
    sequencer: &'a LogSequencer,
    /// Noise lines reported.
    noise_reported: u64,
    /// Time of the next noise report.
    noise_due_ms: u64,
    /// Cost of useless lines.
    waste: u64,
}

impl RpcReader<'_> {
    fn handle_line(&mut self, line: Bytes) {
        let (length, idle) = (line.len(), self.rpc.in_flight() == 0);
        let before = self.rpc.counters.wasted_total();
        self.dispatch_line(line);
        if idle || self.rpc.counters.wasted_total() != before {
            self.waste += noise_cost(1, length);
        }
    }

    fn dispatch_line(&mut self, line: Bytes) {
        for _ in 0..demux::dispatch_text(self.rpc, &self.events, line, None) {
            self.count_noise();
        }
    }

    /// Fails the request whose response was discarded.
    fn fail_too_long(&mut self, response_id: Option<u64>) {
        match response_id {
            Some(id) => {
                let bytes_max = self.rpc.response_bytes_max(id);
                demux::fail_request(self.rpc.as_ref(), id, LinkError::TooLong { bytes_max });
            }
            None => {
                self.waste += noise_cost(1, self.rpc.limits.line_bytes_max);
                self.count_noise();
            }
        }
    }

    fn count_noise(&mut self) {
        let total = self.rpc.counters.noise.fetch_add(1, Ordering::Relaxed) + 1;
        let now_ms = self.sequencer.now_ms();
        if now_ms >= self.noise_due_ms {
            let lines = total - self.noise_reported;
            warn!(server = %self.rpc.server, lines, "stdout has lines that are not messages");
            self.noise_reported = total;
            self.noise_due_ms = now_ms + NOISE_REPORT_INTERVAL_MS;
        }
    }
}

impl RpcConnection {
    /// Returns the largest response limit of the requests in flight.
    pub(super) fn large_bytes_max(&self) -> usize {
        let state = self.lock();
        let kinds = state.requests.pending.iter().map(|(_, entry)| entry.kind);
        let limits = kinds.map(|kind| self.limits.large.bytes_max(kind, 0));
        limits.max().unwrap_or_default()
    }

    /// Returns the size limit of the response to a request.
    pub(super) fn response_bytes_max(&self, id: u64) -> usize {
        let usual = self.limits.line_bytes_max;
        let kind = self.lock().requests.pending.get(id).map(|entry| entry.kind);
        kind.map_or(usual, |kind| self.limits.large.bytes_max(kind, usual))
    }

    /// Rejects an overlong line unless it is a large response; the error holds the answered
    /// request.
    pub(super) fn check_line_length(&self, line: &Bytes) -> Result<(), Option<u64>> {
        if line.len() <= self.limits.line_bytes_max {
            return Ok(());
        }
        let message = RpcMessage::parse_from_server(line.clone()).map_err(|_| None)?;
        let response_id = match message.kind() {
            MessageKind::Response => message.id().and_then(demux::parse_own_id),
            MessageKind::Request | MessageKind::Notification => None,
        };
        match response_id {
            Some(id) if line.len() <= self.response_bytes_max(id) => Ok(()),
            response_id => Err(response_id),
        }
    }
}

/// Bytes per read.
const CHUNK_BYTES: usize = 64 * 1024;

/// A larger empty buffer is released.
const KEPT_BYTES_MAX: usize = 4 * CHUNK_BYTES;

/// Buffered input without complete lines.
#[derive(Debug)]
pub(super) struct LineBuffer {
    buffer: BytesMut,
    /// Buffered bytes known to hold no line end.
    searched: usize,
    /// State of a line that is being discarded.
    overlong: Option<OverlongLine>,
    line_bytes_max: usize,
    discard_bytes_max: usize,
}

/// Next line of a stream.
#[derive(Debug)]
pub(super) enum BufferedLine {
    /// A line without its end.
    Whole(Bytes),
    /// A discarded line.
    TooLong(OverlongLine),
    /// A line beyond the discard limit.
    Overrun,
}

impl LineBuffer {
    pub(super) fn new(line_bytes_max: usize, discard_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            overlong: None,
            line_bytes_max,
            discard_bytes_max,
        }
    }

    /// Returns the read buffer with room in it. All lines must have been taken before.
    pub(super) fn read_buffer(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = BytesMut::new();
        }
        // Reuses the memory of released lines.
        self.buffer.reserve(CHUNK_BYTES);
        &mut self.buffer
    }

    /// Takes the next line. `large` returns the limit for an overlong line, and is called for such
    /// lines only.
    pub(super) fn next(&mut self, large: impl FnOnce() -> usize) -> Option<BufferedLine> {
        if let Some(mut overlong) = self.overlong.take() {
            let end = memchr::memchr(b'\n', &self.buffer);
            let length = end.unwrap_or(self.buffer.len());
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            self.buffer.advance(end.map_or(length, |end| end + 1));
            return self.finish_overlong(overlong, end.is_some());
        }
        let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
        let end = memchr::memchr(b'\n', unsearched).map(|at| self.searched + at);
        self.searched = 0;
        let length = end.unwrap_or(self.buffer.len());
        if length > self.line_bytes_max && length > large() {
            let mut overlong = OverlongLine::default();
            overlong.push(self.buffer.get(..length).unwrap_or_default());
            match end {
                Some(end) => self.buffer.advance(end + 1),
                None => self.buffer = BytesMut::new(),
            }
            return self.finish_overlong(overlong, end.is_some());
        }
        let Some(end) = end else {
            self.searched = length;
            return None;
        };
        let mut line = self.buffer.split_to(end + 1);
        line.truncate(end);
        Some(BufferedLine::Whole(line.freeze()))
    }

    /// Takes the bytes after the last line end; `None` for a partly discarded line.
    pub(super) fn take_rest(&mut self) -> Option<Bytes> {
        let rest = self.buffer.split().freeze();
        (self.overlong.is_none() && !rest.is_empty()).then_some(rest)
    }

    fn finish_overlong(
        &mut self,
        overlong: OverlongLine,
        is_complete: bool,
    ) -> Option<BufferedLine> {
        if overlong.length() > self.discard_bytes_max {
            return Some(BufferedLine::Overrun);
        }
        if is_complete {
            return Some(BufferedLine::TooLong(overlong));
        }
        self.overlong = Some(overlong);
        None
    }
}

#[cfg(test)]
mod tests;
