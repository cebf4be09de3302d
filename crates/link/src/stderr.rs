//! What servers write to stderr, kept in a ring per server.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

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
    last: watch::Sender<u64>,
}

impl fmt::Debug for Stamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stamps").field("last", &self.last).finish()
    }
}

impl Stamps {
    /// Returns stamps that begin with line 1; `now_ms` tells the time since the epoch.
    #[must_use]
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            now_ms: Box::new(now_ms),
            last: watch::Sender::new(0),
        })
    }

    /// Follows the number of the newest line.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
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
}

impl StderrLog {
    /// Returns an empty log.
    #[must_use]
    pub fn new(server: Arc<str>, stamps: Arc<Stamps>, limits: StderrLimits) -> Arc<Self> {
        Arc::new(Self {
            server,
            stamps,
            limits,
        })
    }

    /// Returns up to `limit` lines after number `after`, oldest first.
    #[must_use]
    pub fn read(&self, after: u64, limit: usize) -> Vec<LogLine> {
        let _ = (after, limit);
        Vec::new()
    }
}
