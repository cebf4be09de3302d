//! What servers write to stderr, or log without saying for whom, kept in a ring per server.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use bowline_core::redact::Redactor;
use bowline_core::sync::lock;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use crate::desk::now;
use crate::flood::{Allowance, cost};

mod plain;
use plain::Plain;

/// What is read from a stream at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// Lines of stderr that tell why a server failed.
pub const LAST_WORDS_LINES: usize = 5;

/// Of each of those lines so many characters are shown.
const LAST_WORDS_LINE_CHARS_MAX: usize = 200;

/// One line of a server's stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Its number, growing over all servers.
    pub seq: u64,
    /// The server.
    pub server: Arc<str>,
    /// When it came, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The text, without escapes and line end.
    pub text: Arc<str>,
}

/// Gives the lines of all servers their number and time, and wakes who follows them.
pub struct Stamps {
    now_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The number of the newest line. Lines are stored while it is held, so who sees a number
    /// finds every line up to it.
    newest: Mutex<u64>,
    /// Follows `newest`.
    followed: watch::Sender<u64>,
}

impl fmt::Debug for Stamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let newest = &self.newest;
        f.debug_struct("Stamps").field("newest", newest).finish()
    }
}

impl Stamps {
    /// Returns stamps that begin with line 1; `now_ms` tells the time since the epoch.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            now_ms: Box::new(now_ms),
            newest: Mutex::new(0),
            followed: watch::Sender::new(0),
        })
    }

    /// Follows the number of the newest line.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.followed.subscribe()
    }

    /// Returns the number of the newest line. Who merges the logs of several servers asks for it
    /// first and leaves out lines beyond it, or it may miss one that comes meanwhile.
    #[must_use]
    pub fn newest(&self) -> u64 {
        *lock(&self.newest)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.now_ms)()
    }

    fn stamp(&self, store: impl FnOnce(u64, u64)) {
        let at_ms = self.now_ms();
        let mut newest = lock(&self.newest);
        *newest += 1;
        store(*newest, at_ms);
        self.followed.send_replace(*newest);
    }
}

/// The bounds of one server's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StderrLimits {
    /// Lines kept.
    pub lines_max: usize,
    /// Bytes of text kept.
    pub bytes_max: usize,
    /// Bytes of one line; the rest of it is cut off.
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

/// The last lines of one server's stderr, over all its generations.
#[derive(Debug)]
pub struct StderrLog {
    server: Arc<str>,
    stamps: Arc<Stamps>,
    limits: StderrLimits,
    /// What must not be kept.
    secrets: Arc<Redactor>,
    /// Shared with the logs of the same server under other secrets.
    ring: Arc<Mutex<Ring>>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    /// Invariant: the sum of the lengths of all texts.
    bytes: usize,
}

impl StderrLog {
    /// Returns an empty log of a server that knows no secrets.
    #[must_use]
    pub fn new(server: Arc<str>, stamps: Arc<Stamps>, limits: StderrLimits) -> Arc<Self> {
        Self::redacted(server, stamps, limits, Arc::default())
    }

    /// Returns an empty log that takes these secrets out of each line before it is kept.
    #[must_use]
    pub fn redacted(
        server: Arc<str>,
        stamps: Arc<Stamps>,
        limits: StderrLimits,
        secrets: Arc<Redactor>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server,
            stamps,
            limits,
            secrets,
            ring: Arc::default(),
        })
    }

    /// Returns a log of the same lines that takes other secrets out of those to come.
    #[must_use]
    pub fn under(&self, secrets: Arc<Redactor>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(&self.server),
            stamps: Arc::clone(&self.stamps),
            limits: self.limits,
            secrets,
            ring: Arc::clone(&self.ring),
        })
    }

    /// Returns the stamps that number its lines.
    #[must_use]
    pub const fn stamps(&self) -> &Arc<Stamps> {
        &self.stamps
    }

    /// Returns up to `limit` lines after number `after`, oldest first.
    #[must_use]
    pub fn read(&self, after: u64, limit: usize) -> Vec<LogLine> {
        let ring = lock(&self.ring);
        let first = ring.lines.partition_point(|line| line.seq <= after);
        ring.lines.iter().skip(first).take(limit).cloned().collect()
    }

    /// Returns the texts of the last `count` lines after number `after`, oldest first.
    #[must_use]
    pub fn tail(&self, after: u64, count: usize) -> Vec<Arc<str>> {
        let ring = lock(&self.ring);
        let first = ring.lines.partition_point(|line| line.seq <= after);
        let first = first.max(ring.lines.len().saturating_sub(count));
        let lines = ring.lines.iter().skip(first);
        lines.map(|line| line.text.clone()).collect()
    }

    /// Adds what a server said by another way than stderr, in plain lines and cut like those.
    pub fn say(&self, text: &str) {
        let mut plain = Plain::new(self.limits.line_bytes_max);
        plain.push(text.as_bytes(), |line| self.push(line));
        plain.end(|line| self.push(line));
    }

    /// Adds a line.
    pub fn push(&self, text: &str) {
        let text = self.secrets.clean(text);
        self.stamps.stamp(|seq, at_ms| {
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

/// Writes the last lines of a server as the end of a clause; nothing where it said nothing.
#[must_use]
pub fn last_words(lines: &[Arc<str>]) -> String {
    let said = lines.iter().map(|line| line.trim());
    let said = said.filter(|line| !line.is_empty());
    let said: Vec<String> = said
        .map(|line| line.chars().take(LAST_WORDS_LINE_CHARS_MAX).collect())
        .collect();
    match said.as_slice() {
        [] => String::new(),
        said => format!(": {}", said.join(" | ")),
    }
}

/// Reads a server's stderr to its end, whatever it holds: a server whose stderr is not read
/// stands still sooner or later.
pub(crate) async fn drain<R: AsyncRead + Unpin>(log: Arc<StderrLog>, mut stream: R) {
    let mut plain = Plain::new(log.limits.line_bytes_max);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut allowance = Allowance::new(now());
    while let Ok(length @ 1..) = stream.read(&mut chunk).await {
        let mut lines = 0;
        plain.push(chunk.get(..length).unwrap_or_default(), |line| {
            lines += 1;
            log.push(line);
        });
        if let Some(pause) = allowance.charge(now(), cost(lines, length)) {
            if pause.is_first {
                tracing::warn!(server = %log.server, "stderr is flooded and read slowly");
            }
            tokio::time::sleep(pause.wait).await;
        }
    }
    plain.end(|line| log.push(line));
}

#[cfg(test)]
mod tests;
