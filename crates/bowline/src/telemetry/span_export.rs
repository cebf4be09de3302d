//! Sends spans to a collector in batches, without delaying calls.

use bowline_core::redact::LogRedactor;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bowline_edge::ExportCounts;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HeaderLines, HttpClient, HttpError, HttpRequest, RequestBody, SendOptions,
};
use bowline_runtime::{Lifecycle, Service, Shutdown, TaskTracker};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::otlp_spans as written;
use super::spans::{CallSpan, CallSpanLayer};

/// Maximum queued spans; further spans are dropped and counted.
const QUEUE_SPANS_MAX: usize = 2_048;

/// Maximum spans of one request.
const BATCH_SPANS_MAX: usize = 512;

/// Maximum time a span waits for a batch to fill.
const BATCH_WAIT: Duration = Duration::from_secs(5);

/// Maximum response time of a collector.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed export.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Maximum time for the last export at shutdown.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Maximum bytes read of a collector's response; the content is ignored.
const RESPONSE_BYTES_MAX: usize = 64 * 1024;

/// Path of the traces endpoint below the base URL of a collector.
const TRACES_PATH: &str = "v1/traces";

/// Reason why a batch was not accepted.
#[derive(Debug, Error)]
enum SpanExportError {
    #[error("the collector cannot be reached")]
    Http(#[from] HttpError),
    #[error("the collector answered with status {0}")]
    Refused(StatusCode),
    #[error("the collector did not answer in time")]
    TimedOut,
}

/// The sending end of the span queue.
#[derive(Debug)]
pub struct SpanExporter {
    endpoint: HttpEndpoint,
    service: String,
    spans: mpsc::Receiver<CallSpan>,
    redactor: LogRedactor,
    counts: Arc<ExportCounts>,
}

/// Creates the span layer and the exporter at the other end of its queue.
pub(super) fn create_span_pipeline(
    otlp: &HttpEndpoint,
    service: &str,
    secrets: LogRedactor,
) -> (CallSpanLayer, SpanExporter) {
    let (queue, spans) = mpsc::channel(QUEUE_SPANS_MAX);
    let counts = Arc::<ExportCounts>::default();
    let exporter = SpanExporter {
        endpoint: traces_endpoint(otlp),
        service: service.to_owned(),
        spans,
        redactor: secrets,
        counts: Arc::clone(&counts),
    };
    (CallSpanLayer { queue, counts }, exporter)
}

/// Returns the traces endpoint of a collector at `base`.
fn traces_endpoint(base: &HttpEndpoint) -> HttpEndpoint {
    let path = base.uri().path();
    if path.ends_with(TRACES_PATH) {
        return base.clone();
    }
    let mut path = format!("{}/{TRACES_PATH}", path.trim_end_matches('/'));
    if let Some(query) = base.uri().query() {
        path.push('?');
        path.push_str(query);
    }
    base.resolve(&path).unwrap_or_else(|_| base.clone())
}

/// Handle of the export task.
#[derive(Debug, Default)]
pub struct SpanExportTask(Lifecycle);

impl SpanExportTask {
    /// Exports the remaining spans, with a short time limit.
    pub async fn finish(self) {
        self.0.close_and_wait().await;
    }
}

/// Exports spans until shutdown, then the remaining spans with a short time limit.
struct SpanExport {
    exporter: SpanExporter,
    http: Arc<dyn HttpClient>,
}

impl Service for SpanExport {
    const NAME: &'static str = "traces";

    async fn run(mut self, shutdown: Shutdown) {
        let flush_deadline = async {
            shutdown.wait_closing().await;
            sleep(FLUSH_WAIT).await;
        };
        tokio::select! {
            biased;
            () = self.exporter.export_batches(&*self.http, &shutdown) => {}
            () = flush_deadline => {}
        }
    }
}

impl SpanExporter {
    /// Spawns the export task.
    pub(super) fn spawn_task(
        self,
        http: Arc<dyn HttpClient>,
        tasks: &TaskTracker,
    ) -> SpanExportTask {
        let lifecycle = Lifecycle::default();
        let exporter = self;
        tasks.start(SpanExport { exporter, http }, lifecycle.shutdown());
        SpanExportTask(lifecycle)
    }

    /// Returns the counts of exported spans.
    #[must_use]
    pub fn counts(&self) -> Arc<ExportCounts> {
        Arc::clone(&self.counts)
    }

    async fn export_batches(&mut self, http: &dyn HttpClient, shutdown: &Shutdown) {
        let mut batch = Vec::with_capacity(BATCH_SPANS_MAX);
        let mut failing = false;
        let mut is_running = true;
        while is_running || !batch.is_empty() {
            is_running = self.collect_batch(&mut batch, shutdown).await;
            if batch.is_empty() {
                continue;
            }
            let result = self.send_batch(http, &batch).await;
            self.count_batch(&result, batch.len(), &mut failing);
            batch.clear();
            if result.is_err() && is_running {
                let _stopped = timeout(FAILURE_PAUSE, shutdown.wait_closing()).await;
            }
        }
    }

    /// Collects a batch; returns `false` on shutdown, with the spans queued by then.
    async fn collect_batch(&mut self, batch: &mut Vec<CallSpan>, shutdown: &Shutdown) -> bool {
        let is_running = tokio::select! {
            biased;
            () = shutdown.wait_closing() => false,
            first = self.spans.recv() => {
                batch.extend(first);
                let more = timeout(BATCH_WAIT, fill_batch(&mut self.spans, batch));
                tokio::select! {
                    biased;
                    () = shutdown.wait_closing() => false,
                    _ = more => true,
                }
            }
        };
        while batch.len() < BATCH_SPANS_MAX
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        is_running && !self.spans.is_closed()
    }

    async fn send_batch(
        &self,
        http: &dyn HttpClient,
        batch: &[CallSpan],
    ) -> Result<(), SpanExportError> {
        let body = written::encode_spans(&self.service, batch, &self.redactor);
        let mut request = HttpRequest::new(Method::POST, &self.endpoint);
        let mut lines = HeaderLines::default();
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        request.shared_headers = std::borrow::Cow::Owned(lines);
        request.body = RequestBody::Whole(&body);
        let wait = SendOptions {
            connect_by: None,
            first_byte_by: None,
            on_send: &|| {},
        };
        let exchange = async {
            let mut response = http.send(request, wait).await?;
            // Read to the end, so the connection can be reused.
            let _ignored = response.body.read_whole(RESPONSE_BYTES_MAX).await;
            match response.status {
                status if status.is_success() => Ok(()),
                status => Err(SpanExportError::Refused(status)),
            }
        };
        with_timeout(EXPORT_TIMEOUT, exchange).await
    }

    /// Counts a batch, and warns about the first of several failures in a row.
    fn count_batch(
        &self,
        result: &Result<(), SpanExportError>,
        spans: usize,
        is_failing: &mut bool,
    ) {
        match result {
            Ok(()) => {
                self.counts.add_sent(spans as u64);
                *is_failing = false;
            }
            Err(error) => {
                self.counts.add_lost(spans as u64);
                let error = error as &dyn std::error::Error;
                if std::mem::replace(is_failing, true) {
                    tracing::debug!(error, spans, "span batch lost");
                } else {
                    tracing::warn!(error, collector = %self.endpoint, spans, "span batch lost");
                }
            }
        }
    }
}

async fn with_timeout(
    limit: Duration,
    exchange: impl Future<Output = Result<(), SpanExportError>>,
) -> Result<(), SpanExportError> {
    match timeout(limit, exchange).await {
        Ok(result) => result,
        Err(_) => Err(SpanExportError::TimedOut),
    }
}

/// Receives spans until the batch is full or the queue is closed.
async fn fill_batch(spans: &mut mpsc::Receiver<CallSpan>, batch: &mut Vec<CallSpan>) {
    while batch.len() < BATCH_SPANS_MAX
        && let Some(span) = spans.recv().await
    {
        batch.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_path_is_appended_to_collector_base() {
        for (base, want) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
            ("https://c/otlp?key=k", "https://c/otlp/v1/traces?key=k"),
            ("https://c/v1/traces", "https://c/v1/traces"),
        ] {
            let base = HttpEndpoint::parse(base).unwrap();
            assert_eq!(traces_endpoint(&base).uri().to_string(), want);
        }
    }
}
