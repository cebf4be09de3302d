//! Logs and traces of the gateway. Secrets are redacted from both.

mod log;
mod otlp_spans;
mod span_export;
mod spans;

use std::sync::Arc;

use bowline_link::http::http_client::HttpClient;
use bowline_runtime::TaskTracker;
use tracing_subscriber::filter::{EnvFilter, FilterFn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

pub use bowline_core::redact::LogRedactor;
pub use log::LogFormat;
pub use span_export::{SpanExportTask, SpanExporter};

use bowline_edge::CallTracer;
use bowline_edge::CallTracing;
use spans::CallSpanLayer;

/// Default log filter.
const DEFAULT_LOG_FILTER: &str = "warn";

/// Name of the span of each call.
const CALL_SPAN_NAME: &str = "call";

/// The telemetry of this process.
#[derive(Debug)]
pub struct Telemetry {
    /// Redacts secrets in logs and traces; updated with each configuration.
    pub redactor: LogRedactor,
    /// Decides which calls are traced.
    pub tracer: CallTracer,
    /// Exports traces, if a collector is configured.
    pub exporter: Option<SpanExporter>,
}

impl Telemetry {
    /// Sets up logging to stderr with this filter, and tracing of calls to a collector.
    #[must_use]
    pub fn start(
        filter: Option<&str>,
        format: LogFormat,
        traces: &bowline_config::TelemetryConfig,
    ) -> Self {
        let redactor = LogRedactor::default();
        let filter = EnvFilter::try_new(filter.unwrap_or(DEFAULT_LOG_FILTER))
            .unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG_FILTER));
        let lines = log::log_layer(format, redactor.clone()).with_filter(filter);
        let service = &traces.service_name;
        let span_pipeline = traces.otlp.as_ref();
        let span_pipeline = span_pipeline
            .map(|otlp| span_export::create_span_pipeline(otlp, service, redactor.clone()));
        let (spans, exporter) = span_pipeline.unzip();
        let calls =
            FilterFn::new(|metadata| metadata.is_span() && metadata.name() == CALL_SPAN_NAME);
        let spans = spans.map(|spans: CallSpanLayer| spans.with_filter(calls));
        let subscriber = tracing_subscriber::registry().with(lines).with(spans);
        // Fails only when an embedding program has its own subscriber.
        let _ = subscriber.try_init();
        Self {
            redactor,
            tracer: match exporter {
                Some(_) => CallTracer::new(traces.sample),
                None => CallTracer::noop(),
            },
            exporter,
        }
    }

    /// Returns disabled telemetry, for programs that embed a gateway.
    #[must_use]
    pub fn noop() -> Self {
        Self {
            redactor: LogRedactor::default(),
            tracer: CallTracer::noop(),
            exporter: None,
        }
    }

    /// Returns the tracing parts needed by the edge.
    #[must_use]
    pub fn edge_tracing(&self) -> CallTracing {
        CallTracing {
            tracer: self.tracer,
            counts: self.exporter.as_ref().map(SpanExporter::counts),
        }
    }

    /// Starts the span export, if a collector is configured.
    #[must_use]
    pub fn start_export(self, http: Arc<dyn HttpClient>, tasks: &TaskTracker) -> SpanExportTask {
        match self.exporter {
            Some(exporter) => exporter.spawn_task(http, tasks),
            None => SpanExportTask::default(),
        }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::noop()
    }
}
