//! Sends spans to a collector, in batches, without ever holding up a call.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_host::tasks::Tasks;
use bowline_link::http::client::{HttpClient, HttpError, Lines, Outgoing, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::log::Secrets;
use super::otlp as written;
use super::spans::{Span, Spans};

/// Spans that wait to be sent; further ones are dropped and counted.
const QUEUE_SPANS_MAX: usize = 2_048;

/// Spans of one request.
const BATCH_SPANS_MAX: usize = 512;

/// How long spans wait for others to go with them.
const BATCH_WAIT: Duration = Duration::from_secs(5);

/// How long a collector may take to answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a collector that failed is left alone.
const REST: Duration = Duration::from_secs(5);

/// How long the last spans may take when the gateway goes down.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// What a collector answers with is read as far as this, and not looked at.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Where collectors take traces, below their base address.
const TRACES_PATH: &str = "v1/traces";

/// What became of spans.
#[derive(Debug, Default)]
pub struct SpanCounts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Returns how many a collector took.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns how many were lost: for want of room, or of a collector.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn lose(&self, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }

    fn take(&self, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.sent.fetch_add(spans, Ordering::Relaxed);
    }
}

/// Why a batch was not taken.
#[derive(Debug, Error)]
enum ExportError {
    #[error("the collector cannot be reached")]
    Http(#[from] HttpError),
    #[error("the collector answered with status {0}")]
    Refused(StatusCode),
    #[error("the collector did not answer in time")]
    Late,
}

/// The end of the queue that sends.
#[derive(Debug)]
pub struct Exporter {
    to: Endpoint,
    service: String,
    spans: mpsc::Receiver<Span>,
    secrets: Secrets,
    counts: Arc<SpanCounts>,
}

/// Returns who watches calls and who sends what was seen.
pub(super) fn pair(otlp: &Endpoint, service: &str, secrets: Secrets) -> (Spans, Exporter) {
    let (queue, spans) = mpsc::channel(QUEUE_SPANS_MAX);
    let counts = Arc::<SpanCounts>::default();
    let exporter = Exporter {
        to: traces_of(otlp),
        service: service.to_owned(),
        spans,
        secrets,
        counts: Arc::clone(&counts),
    };
    (Spans { queue, counts }, exporter)
}

/// Returns where a collector at `base` takes traces.
fn traces_of(base: &Endpoint) -> Endpoint {
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

/// The task that sends.
#[derive(Debug, Default)]
pub struct Exporting(Option<(watch::Sender<bool>, oneshot::Receiver<()>)>);

impl Exporting {
    /// Sends what is left, but not for long.
    pub async fn finish(self) {
        if let Some((stop, done)) = self.0 {
            stop.send_replace(true);
            // It ends by itself, in time; its end is told by dropping the other side.
            let _dropped = done.await;
        }
    }
}

impl Exporter {
    /// Begins to send.
    pub(super) fn start(self, http: Arc<dyn HttpClient>, tasks: &Tasks) -> Exporting {
        let (stop, stopped) = watch::channel(false);
        let (alive, done) = oneshot::channel();
        tasks.spawn("traces", async move {
            let _alive = alive;
            self.run(http, stopped).await;
        });
        Exporting(Some((stop, done)))
    }

    /// Returns what became of spans so far.
    #[must_use]
    pub fn counts(&self) -> Arc<SpanCounts> {
        Arc::clone(&self.counts)
    }

    /// Sends what comes, until told to stop; then what is left, but not for long.
    async fn run(mut self, http: Arc<dyn HttpClient>, mut stop: watch::Receiver<bool>) {
        let mut stopped = stop.clone();
        let late = async {
            told(&mut stopped).await;
            sleep(FLUSH_WAIT).await;
        };
        tokio::select! {
            biased;
            () = self.send_all(&*http, &mut stop) => {}
            () = late => {}
        }
    }

    async fn send_all(&mut self, http: &dyn HttpClient, stop: &mut watch::Receiver<bool>) {
        let mut batch = Vec::with_capacity(BATCH_SPANS_MAX);
        let mut failing = false;
        let mut goes_on = true;
        while goes_on || !batch.is_empty() {
            goes_on = self.gather(&mut batch, stop).await;
            if batch.is_empty() {
                continue;
            }
            let sent = self.send(http, &batch).await;
            self.count(&sent, batch.len(), &mut failing);
            batch.clear();
            if sent.is_err() && goes_on {
                let _told = timeout(REST, told(stop)).await;
            }
        }
    }

    /// Waits for a batch; `false` when it is time to stop, with what has come by then.
    async fn gather(&mut self, batch: &mut Vec<Span>, stop: &mut watch::Receiver<bool>) -> bool {
        let goes_on = tokio::select! {
            biased;
            () = told(stop) => false,
            first = self.spans.recv() => {
                batch.extend(first);
                let more = timeout(BATCH_WAIT, fill(&mut self.spans, batch));
                tokio::select! {
                    biased;
                    () = told(stop) => false,
                    _ = more => true,
                }
            }
        };
        while batch.len() < BATCH_SPANS_MAX
            && let Ok(span) = self.spans.try_recv()
        {
            batch.push(span);
        }
        goes_on && !self.spans.is_closed()
    }

    async fn send(&self, http: &dyn HttpClient, batch: &[Span]) -> Result<(), ExportError> {
        let body = written::request(&self.service, batch, &self.secrets);
        let mut request = Outgoing::new(Method::POST, &self.to);
        let mut lines = Lines::default();
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        request.lines = std::borrow::Cow::Owned(lines);
        request.body = Upload::Whole(&body);
        let wait = Wait {
            connect: None,
            first_byte: None,
            leaving: &|| {},
        };
        let exchange = async {
            let mut response = http.send(request, wait).await?;
            // Read to its end, so that the connection can be used again.
            let _ignored = response.body.whole(ANSWER_BYTES_MAX).await;
            match response.status {
                status if status.is_success() => Ok(()),
                status => Err(ExportError::Refused(status)),
            }
        };
        within(EXPORT_TIMEOUT, exchange).await
    }

    /// Counts a batch, and tells of the first one that fails in a row.
    fn count(&self, sent: &Result<(), ExportError>, spans: usize, failing: &mut bool) {
        match sent {
            Ok(()) => {
                self.counts.take(spans);
                *failing = false;
            }
            Err(error) => {
                self.counts.lose(spans);
                let error = error as &dyn std::error::Error;
                if std::mem::replace(failing, true) {
                    tracing::debug!(error, spans, "traces were lost");
                } else {
                    tracing::warn!(error, collector = %self.to, spans, "traces were lost");
                }
            }
        }
    }
}

async fn within(
    limit: Duration,
    exchange: impl Future<Output = Result<(), ExportError>>,
) -> Result<(), ExportError> {
    match timeout(limit, exchange).await {
        Ok(sent) => sent,
        Err(_) => Err(ExportError::Late),
    }
}

/// Waits until it is time to stop; whoever could say so being gone means the same.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Takes spans until the batch is full or nobody is left who makes any.
async fn fill(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
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
    fn traces_go_below_the_base_address_of_the_collector() {
        for (base, want) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
            ("https://c/otlp?key=k", "https://c/otlp/v1/traces?key=k"),
            ("https://c/v1/traces", "https://c/v1/traces"),
        ] {
            let base = Endpoint::parse(base).unwrap();
            assert_eq!(traces_of(&base).uri().to_string(), want);
        }
    }
}
