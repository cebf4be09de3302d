//! Ships rows of the trail to syslog or to a collector, as they are written.
//!
//! The queue is the trail itself: how far rows were taken is kept in a file beside them, so an
//! outage or a restart delays rows and loses none, unless they are let go first. Those are counted.

mod otlp;
mod syslog;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_host::audit::Rings;
use bowline_journal::audit::{AuditError, Cursor, Filter, Merged, RowText};
use bowline_link::http::client::{HttpClient, HttpError};
use bowline_link::http::endpoint::Endpoint;
use http::StatusCode;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::timeout;

use self::otlp::Collector;
use self::syslog::Syslog;
use crate::config::AuditExport;
use crate::state::file;

/// Rows that are sent at a time.
const BATCH_ROWS_MAX: usize = 256;

/// How long a receiver may take to take a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a receiver that failed is left alone.
const REST: Duration = Duration::from_secs(2);

/// The file that says how far rows were taken.
const PLACE: &str = "exported";

/// Bytes of that file.
const PLACE_BYTES_MAX: u64 = 64;

/// What became of rows.
#[derive(Debug, Default)]
pub struct ExportCounts {
    sent: AtomicU64,
    lost: AtomicU64,
}

impl ExportCounts {
    /// Returns how many the receiver took.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns how many were let go, or are too long, before the receiver took them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Why rows were not taken.
#[derive(Debug, Error)]
enum ExportError {
    #[error("syslog cannot be reached")]
    Syslog(#[from] std::io::Error),
    #[error("the collector cannot be reached")]
    Http(#[from] HttpError),
    #[error("the collector answered with status {0}")]
    Refused(StatusCode),
    #[error("the receiver did not take rows in time")]
    Late,
    #[error("rows cannot be read")]
    Unread(#[from] AuditError),
}

/// Where rows go.
#[derive(Debug)]
enum Receiver {
    Syslog(Syslog),
    Collector(Collector),
}

/// Sends rows.
#[derive(Debug)]
pub(super) struct Shipper {
    rings: Arc<Rings>,
    to: Receiver,
    place: PathBuf,
    counts: Arc<ExportCounts>,
}

impl Shipper {
    /// Returns what ships rows as the configuration wants; nothing where a collector is wanted and
    /// none is named.
    pub(super) fn new(
        rings: &Arc<Rings>,
        wanted: &AuditExport,
        (otlp, service): (Option<&Endpoint>, &str),
        http: Arc<dyn HttpClient>,
        counts: &Arc<ExportCounts>,
    ) -> Option<Self> {
        let to = match wanted {
            AuditExport::Syslog(to) => Receiver::Syslog(Syslog::new(to.clone())),
            AuditExport::Otlp => Receiver::Collector(Collector::new(otlp?, service, http)),
        };
        Some(Self {
            place: rings.calls().directory().join(PLACE),
            rings: Arc::clone(rings),
            to,
            counts: Arc::clone(counts),
        })
    }

    /// Sends rows until told to stop. What is not sent by then is sent by the next gateway.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.ship() => {}
            // Whoever could say so being gone means the same.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    async fn ship(&mut self) {
        let mut heads = (self.rings.calls().heads(), self.rings.denials().heads());
        let mut after = self.read_place();
        // Where a receiver that says nothing may have lost what it was sent last.
        let mut before = after;
        let mut is_failing = false;
        loop {
            heads.0.borrow_and_update();
            heads.1.borrow_and_update();
            match self.send_page(after).await {
                Ok(next) if next == after => {
                    let changed = tokio::select! {
                        changed = heads.0.changed() => changed,
                        changed = heads.1.changed() => changed,
                    };
                    if changed.is_err() {
                        return;
                    }
                }
                Ok(next) => {
                    is_failing = false;
                    (before, after) = (after, next);
                    self.write_place(after);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "audit rows are not exported for now");
                    }
                    after = before;
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }

    /// Sends the rows after a place and returns the place after them.
    async fn send_page(&mut self, after: Cursor) -> Result<Cursor, ExportError> {
        let rings = Arc::clone(&self.rings);
        let read = tokio::task::spawn_blocking(move || {
            let directory = rings.calls().directory();
            Merged::page(directory, &Filter::default(), after, BATCH_ROWS_MAX)
        });
        let page = read.await.map_err(|_| ExportError::Late)??;
        if page.rows.is_empty() {
            return Ok(page.next);
        }
        let sending = async {
            match &mut self.to {
                Receiver::Syslog(syslog) => syslog.send(&page.rows).await,
                Receiver::Collector(collector) => collector.send(&page.rows).await,
            }
        };
        let unsent = timeout(SEND_TIMEOUT, sending).await;
        let unsent = unsent.unwrap_or(Err(ExportError::Late))?;
        let rows = u64::try_from(page.rows.len()).unwrap_or(u64::MAX);
        let lost = unsent + gone(after, page.next, &page.rows);
        self.counts
            .sent
            .fetch_add(rows - unsent.min(rows), Ordering::Relaxed);
        self.counts.lost.fetch_add(lost, Ordering::Relaxed);
        Ok(page.next)
    }

    fn read_place(&self) -> Cursor {
        let text = file::read_private(&self.place, PLACE_BYTES_MAX);
        let text = text.ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.trim().parse().unwrap_or_default()
    }

    fn write_place(&self, after: Cursor) {
        // Failing, rows are sent twice after a restart.
        if let Err(error) = file::replace(&self.place, format!("{after}\n").as_bytes()) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the place of the audit export is not kept");
        }
    }
}

/// Returns how many rows between two places were let go before they were read.
fn gone(after: Cursor, next: Cursor, rows: &[RowText]) -> u64 {
    let passed = (next.calls.saturating_sub(after.calls))
        .saturating_add(next.denials.saturating_sub(after.denials));
    passed.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX))
}

/// Whether a row tells of a refusal, by the text of its kind.
fn is_refusal(row: &RowText) -> bool {
    row.body.contains("\"ring\":\"denials\"")
}

#[derive(Debug, serde::Deserialize)]
struct Noted {
    at_ms: u64,
}

/// Returns when a row was noted.
fn noted_ms(row: &RowText) -> u64 {
    serde_json::from_str::<Noted>(&row.body).map_or(0, |noted| noted.at_ms)
}
