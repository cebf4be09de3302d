//! Exports audit rows to syslog or to an OTLP collector.
//!
//! The trail itself is the queue: a file beside the rows holds the export position. An outage or a
//! restart only delays rows, unless retention removes them first; removed rows are counted as
//! lost.

mod otlp_logs;
mod syslog;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_host::audit::AuditRings;
use bowline_journal::audit::{AuditCursor, AuditError, AuditFilter, MergedPage, RowText};
use bowline_link::http::http_client::{HttpClient, HttpError};
use bowline_runtime::Shutdown;
use http::StatusCode;
use thiserror::Error;
use tokio::time::timeout;

use self::otlp_logs::OtlpLogClient;
use self::syslog::SyslogClient;
use bowline_config::state::private_file;
use bowline_config::{AuditExportConfig, TelemetryConfig};
use bowline_edge::ExportCounts;
use bowline_edge::GatewayAudit;

/// Maximum rows of one batch.
const BATCH_ROWS_MAX: usize = 256;

/// Maximum time to send a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed batch.
const FAILURE_PAUSE: Duration = Duration::from_secs(2);

/// Name of the file with the export position.
const POSITION_FILE: &str = "exported";

/// Maximum size of the position file.
const POSITION_BYTES_MAX: u64 = 64;

/// Reason why a batch was not exported.
#[derive(Debug, Error)]
enum AuditExportError {
    #[error("syslog cannot be reached")]
    Syslog(#[from] std::io::Error),
    #[error("the collector cannot be reached")]
    Http(#[from] HttpError),
    #[error("the collector answered with status {0}")]
    Refused(StatusCode),
    #[error("the receiver did not take rows in time")]
    TimedOut,
    #[error("rows cannot be read")]
    TrailRead(#[from] AuditError),
}

/// Target of the export.
#[derive(Debug)]
enum AuditExportTarget {
    Syslog(SyslogClient),
    Collector(OtlpLogClient),
}

/// Exports the rows of a trail until shutdown. The next gateway continues at the stored position.
pub(crate) async fn export_rows(
    audit: GatewayAudit,
    config: AuditExportConfig,
    traces: TelemetryConfig,
    http: Arc<dyn HttpClient>,
    shutdown: Shutdown,
) {
    let (Some(rings), Some(counts)) = (audit.rings(), audit.export_counts()) else {
        return;
    };
    match AuditShipper::new(rings, &config, &traces, http, counts) {
        Some(mut shipper) => tokio::select! {
            () = shipper.export_pages() => {}
            () = shutdown.wait_closing() => {}
        },
        None => tracing::error!("audit rows are not exported: [telemetry] names no `otlp`"),
    }
}

/// Exports audit rows.
#[derive(Debug)]
struct AuditShipper {
    rings: Arc<AuditRings>,
    target: AuditExportTarget,
    position_path: PathBuf,
    counts: Arc<ExportCounts>,
}

impl AuditShipper {
    /// Creates the exporter for this configuration; `None` when OTLP is wanted but no collector is
    /// configured.
    fn new(
        rings: &Arc<AuditRings>,
        config: &AuditExportConfig,
        telemetry: &TelemetryConfig,
        http: Arc<dyn HttpClient>,
        counts: &Arc<ExportCounts>,
    ) -> Option<Self> {
        let target = match config {
            AuditExportConfig::Syslog(target) => {
                AuditExportTarget::Syslog(SyslogClient::new(target.clone()))
            }
            AuditExportConfig::Otlp => {
                let collector = telemetry.otlp.as_ref()?;
                let service = &telemetry.service_name;
                AuditExportTarget::Collector(OtlpLogClient::new(collector, service, http))
            }
        };
        Some(Self {
            position_path: rings.calls().directory().join(POSITION_FILE),
            rings: Arc::clone(rings),
            target,
            counts: Arc::clone(counts),
        })
    }

    async fn export_pages(&mut self) {
        let mut heads = (
            self.rings.calls().head_updates(),
            self.rings.denials().head_updates(),
        );
        let mut after = self.read_position();
        // An unacknowledged receiver may have lost the last batch, so a failure repeats it.
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
                    self.write_position(after);
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "audit export failed; retrying");
                    }
                    after = before;
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
            }
        }
    }

    /// Sends the rows after a position and returns the next position.
    async fn send_page(&mut self, after: AuditCursor) -> Result<AuditCursor, AuditExportError> {
        let rings = Arc::clone(&self.rings);
        let read = tokio::task::spawn_blocking(move || {
            let directory = rings.calls().directory();
            MergedPage::read_page(directory, &AuditFilter::default(), after, BATCH_ROWS_MAX)
        });
        let page = read.await.map_err(|_| AuditExportError::TimedOut)??;
        if page.rows.is_empty() {
            return Ok(page.next);
        }
        let sending = async {
            match &mut self.target {
                AuditExportTarget::Syslog(syslog) => syslog.send_rows(&page.rows).await,
                AuditExportTarget::Collector(collector) => collector.send_rows(&page.rows).await,
            }
        };
        let unsent = timeout(SEND_TIMEOUT, sending).await;
        let unsent = unsent.unwrap_or(Err(AuditExportError::TimedOut))?;
        let rows = u64::try_from(page.rows.len()).unwrap_or(u64::MAX);
        let lost = unsent + count_removed_rows(after, page.next, &page.rows);
        self.counts.add_sent(rows - unsent.min(rows));
        self.counts.add_lost(lost);
        Ok(page.next)
    }

    fn read_position(&self) -> AuditCursor {
        let text = private_file::read_private(&self.position_path, POSITION_BYTES_MAX);
        let text = text.ok().flatten().unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.trim().parse().unwrap_or_default()
    }

    fn write_position(&self, after: AuditCursor) {
        // On failure, rows are sent twice after a restart.
        if let Err(error) =
            private_file::replace_file(&self.position_path, format!("{after}\n").as_bytes())
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "audit export position could not be stored");
        }
    }
}

/// Returns how many rows between two positions were removed before they were read.
fn count_removed_rows(after: AuditCursor, next: AuditCursor, rows: &[RowText]) -> u64 {
    let passed = (next.calls.saturating_sub(after.calls))
        .saturating_add(next.denials.saturating_sub(after.denials));
    passed.saturating_sub(u64::try_from(rows.len()).unwrap_or(u64::MAX))
}

/// Returns whether a row belongs to the denials ring, judged by its text.
fn is_denial_row(row: &RowText) -> bool {
    row.body.contains("\"ring\":\"denials\"")
}

#[derive(Debug, serde::Deserialize)]
struct RowTimestamp {
    at_ms: u64,
}

/// Returns the timestamp of a row.
fn row_timestamp_ms(row: &RowText) -> u64 {
    serde_json::from_str::<RowTimestamp>(&row.body).map_or(0, |noted| noted.at_ms)
}
