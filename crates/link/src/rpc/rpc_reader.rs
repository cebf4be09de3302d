//! Reader task of a stdio link: dispatches every line from the server.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};
use tracing::warn;

use super::line_buffer::{BufferedLine, LineBuffer};
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
