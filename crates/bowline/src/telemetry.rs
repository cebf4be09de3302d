//! What the gateway tells of itself to those who run it: logs and traces. Secrets stay out of both.

mod export;
mod log;
mod otlp;
mod spans;
mod tracer;

use std::sync::Arc;

use bowline_host::tasks::Tasks;
use bowline_link::http::client::HttpClient;
use tracing_subscriber::filter::{EnvFilter, FilterFn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

pub use export::{Exporter, Exporting, SpanCounts};
pub use log::{Format, Secrets};
pub use tracer::Tracer;

use crate::config;
use crate::edge::Traced;
use spans::Spans;

/// What is logged where nobody says otherwise.
const LOG_DEFAULT: &str = "warn";

/// The name of the span that each call has.
const CALL_SPAN: &str = "call";

/// What was set up for this process.
#[derive(Debug)]
pub struct Telemetry {
    /// What logs and traces must not show; told anew with each configuration.
    pub secrets: Secrets,
    /// Decides which calls are traced.
    pub tracer: Tracer,
    /// Sends traces away, where there is somebody to send them to.
    pub exporter: Option<Exporter>,
}

impl Telemetry {
    /// Has what happens told on stderr, as much of it as `filter` says, and calls told to a
    /// collector.
    #[must_use]
    pub fn start(filter: Option<&str>, format: Format, traces: &config::Telemetry) -> Self {
        let secrets = Secrets::default();
        let filter = EnvFilter::try_new(filter.unwrap_or(LOG_DEFAULT))
            .unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
        let lines = log::layer(format, secrets.clone()).with_filter(filter);
        let service = &traces.service_name;
        let pair = traces.otlp.as_ref();
        let pair = pair.map(|otlp| export::pair(otlp, service, secrets.clone()));
        let (spans, exporter) = pair.unzip();
        let calls = FilterFn::new(|seen| seen.is_span() && seen.name() == CALL_SPAN);
        let spans = spans.map(|spans: Spans| spans.with_filter(calls));
        let subscriber = tracing_subscriber::registry().with(lines).with(spans);
        // Fails only when the program that embeds us has its own.
        let _ = subscriber.try_init();
        Self {
            secrets,
            tracer: match exporter {
                Some(_) => Tracer::new(traces.sample),
                None => Tracer::off(),
            },
            exporter,
        }
    }

    /// Returns what tells nobody anything, for those who run a gateway inside their own program.
    #[must_use]
    pub fn off() -> Self {
        Self {
            secrets: Secrets::default(),
            tracer: Tracer::off(),
            exporter: None,
        }
    }

    /// Returns what the edge needs to know of traces.
    #[must_use]
    pub fn traced(&self) -> Traced {
        Traced {
            tracer: self.tracer,
            counts: self.exporter.as_ref().map(Exporter::counts),
        }
    }

    /// Begins to send traces away, where there is somebody to send them to.
    #[must_use]
    pub fn export(self, http: Arc<dyn HttpClient>, tasks: &Tasks) -> Exporting {
        match self.exporter {
            Some(exporter) => exporter.start(http, tasks),
            None => Exporting::default(),
        }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::off()
    }
}
