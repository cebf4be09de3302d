//! Ring buffer of a server's stderr, and of its log messages without a single session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use bowline_core::redact::Redactor;
use bowline_core::sync::lock;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use crate::demux::now;
use crate::read_throttle::{ReadThrottle, noise_cost};

mod line_sanitizer;
use line_sanitizer::LineSanitizer;

/// Bytes per read.
const CHUNK_BYTES: usize = 16 * 1024;

/// Last stderr lines in a failure report.
pub const LAST_WORDS_LINES: usize = 5;

/// Characters per line in a failure report.
const LAST_WORDS_LINE_CHARS_MAX: usize = 200;

/// One stderr line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Sequence number over all servers.
    pub seq: u64,
    /// The server.
    pub server: Arc<str>,
    /// Arrival time, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Text without escape sequences and line end.
    pub text: Arc<str>,
}

/// Assigns sequence numbers and times to the lines of all servers, and notifies followers.
pub struct LogSequencer {
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Newest sequence number. Lines are stored under this lock, so every line up to a visible
    /// number is readable.
    newest: Mutex<u64>,
    /// Mirrors `newest` for followers.
    followed: watch::Sender<u64>,
}

impl fmt::Debug for LogSequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest = &self.newest;
        f.debug_struct("LogSequencer")
            .field("newest", newest)
            .finish()
    }
}

impl LogSequencer {
    /// Starts with line 1; `now_ms` returns the time since the epoch.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            now_ms: Box::new(now_ms),
            newest: Mutex::new(0),
            followed: watch::Sender::new(0),
        })
    }

    /// Follows the newest sequence number.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.followed.subscribe()
    }

    /// Returns the newest sequence number. To merge logs of several servers, read it first and skip
    /// later lines; otherwise a concurrent line may be missed.
    #[must_use]
    pub fn newest_seq(&self) -> u64 {
        *lock(&self.newest)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.now_ms)()
    }

    fn assign_seq(&self, store: impl FnOnce(u64, u64)) {
        let at_ms = self.now_ms();
        let mut newest = lock(&self.newest);
        *newest += 1;
        store(*newest, at_ms);
        self.followed.send_replace(*newest);
    }
}

/// Limits of a ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StderrLimits {
    /// Lines kept.
    pub lines_max: usize,
    /// Text bytes kept.
    pub bytes_max: usize,
    /// Bytes per line; longer lines are cut.
    pub line_bytes_max: usize,
}

impl Default for StderrLimits {
    fn default() -> Self {
        Self {
            lines_max: 2_000,
            bytes_max: 256 * 1024,
            line_bytes_max: 8 * 1024,
        }
    }
}

/// Last stderr lines of a server, over all generations.
#[derive(Debug)]
pub struct StderrLog {
    server: Arc<str>,
    sequencer: Arc<LogSequencer>,
    limits: StderrLimits,
    /// Secrets to redact.
    secrets: Arc<Redactor>,
    /// Shared by logs of the same server with different secrets.
    ring: Arc<Mutex<LineRing>>,
}

#[derive(Debug, Default)]
struct LineRing {
    lines: VecDeque<LogLine>,
    /// Invariant: the sum of all text lengths.
    bytes: usize,
}

impl StderrLog {
    /// Returns an empty log without secrets.
    #[must_use]
    pub fn new(server: Arc<str>, stamps: Arc<LogSequencer>, limits: StderrLimits) -> Arc<Self> {
        Self::with_redactor(server, stamps, limits, Arc::default())
    }

    /// Returns an empty log that redacts these secrets.
    #[must_use]
    pub fn with_redactor(
        server: Arc<str>,
        stamps: Arc<LogSequencer>,
        limits: StderrLimits,
        secrets: Arc<Redactor>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            sequencer: stamps,
            limits,
            secrets,
            ring: Arc::default(),
        })
    }

    /// Returns a log of the same ring that redacts new secrets in later lines.
    #[must_use]
    pub fn with_secrets(&self, secrets: Arc<Redactor>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(&self.server),
            sequencer: Arc::clone(&self.sequencer),
            limits: self.limits,
            secrets,
            ring: Arc::clone(&self.ring),
        })
    }

    /// Returns the sequencer.
    #[must_use]
    pub const fn sequencer(&self) -> &Arc<LogSequencer> {
        &self.sequencer
    }

    /// Returns up to `limit` lines after sequence number `after`, oldest first.
    #[must_use]
    pub fn read_after(&self, after: u64, limit: usize) -> Vec<LogLine> {
        let ring = lock(&self.ring);
        let first = ring.lines.partition_point(|line| line.seq <= after);
        ring.lines.iter().skip(first).take(limit).cloned().collect()
    }

    /// Returns the texts of the last `count` lines after sequence number `after`, oldest first.
    #[must_use]
    pub fn tail(&self, after: u64, count: usize) -> Vec<Arc<str>> {
        let ring = lock(&self.ring);
        let first = ring.lines.partition_point(|line| line.seq <= after);
        let first = first.max(ring.lines.len().saturating_sub(count));
        let lines = ring.lines.iter().skip(first);
        lines.map(|line| line.text.clone()).collect()
    }

    /// Adds text from a source besides stderr, sanitized and cut in the same way.
    pub fn push_text(&self, text: &str) {
        let mut plain = LineSanitizer::new(self.limits.line_bytes_max);
        plain.push(text.as_bytes(), |line| self.push_line(line));
        plain.finish_line(|line| self.push_line(line));
    }

    /// Adds a line.
    pub fn push_line(&self, text: &str) {
        let text = self.secrets.redact_text(text);
        self.sequencer.assign_seq(|seq, at_ms| {
            let mut ring = lock(&self.ring);
            ring.bytes += text.len();
            ring.lines.push_back(LogLine {
                seq,
                server: self.server.clone(),
                at_ms,
                text: text.as_ref().into(),
            });
            while ring.lines.len() > self.limits.lines_max || ring.bytes > self.limits.bytes_max {
                let Some(oldest) = ring.lines.pop_front() else {
                    break;
                };
                ring.bytes -= oldest.text.len();
            }
        });
    }
}

/// Formats the last lines of a server as the end of a clause; empty without lines.
#[must_use]
pub fn last_words(lines: &[Arc<str>]) -> String {
    let shown_lines = lines.iter().map(|line| line.trim());
    let shown_lines = shown_lines.filter(|line| !line.is_empty());
    let shown_lines: Vec<String> = shown_lines
        .map(|line| line.chars().take(LAST_WORDS_LINE_CHARS_MAX).collect())
        .collect();
    match shown_lines.as_slice() {
        [] => String::new(),
        shown_lines => format!(": {}", shown_lines.join(" | ")),
    }
}

/// Reads stderr to its end: a server whose stderr is not read blocks sooner or later.
pub(crate) async fn drain_stderr<R: AsyncRead + Unpin>(log: Arc<StderrLog>, mut stream: R) {
    let mut plain = LineSanitizer::new(log.limits.line_bytes_max);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut allowance = ReadThrottle::new(now());
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        let mut lines = 0;
        plain.push(chunk.get(..length).unwrap_or_default(), |line| {
            lines += 1;
            log.push_line(line);
        });
        if let Some(pause) = allowance.charge(now(), noise_cost(lines, length)) {
            if pause.is_first {
                tracing::warn!(server = %log.server, "stderr is flooded; reading slowly");
            }
            tokio::time::sleep(pause.wait).await;
        }
    }
    plain.finish_line(|line| log.push_line(line));
}

#[cfg(test)]
mod tests;
