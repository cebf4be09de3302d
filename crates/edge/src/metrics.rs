//! `/metrics`: OpenMetrics output, collected per scrape. For the owner and viewer tokens.

mod broker_metrics;
mod executor_metrics;
mod metric_names;
mod metrics_writer;
mod outbox_metrics;
mod process_metrics;
mod share_metrics;

use std::fmt;
use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_core::load::LoadTotals;
use bowline_host::supervisor::ServerStatus;
use http::{HeaderValue, Method, StatusCode, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::registry::Registry;

use self::broker_metrics::BrokerMetrics;
use self::executor_metrics::ExecutorMetrics;
use self::metrics_writer::MetricsWriter;
use self::outbox_metrics::OutboxMetrics;
use self::process_metrics::ProcessMetrics;
use self::share_metrics::ShareMetrics;
use super::Edge;
use super::auth::AuthError;
use super::response_body::{self, EdgeResponse};
use crate::tokens::TokenKind;

/// Media type of the output.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Handles a scrape.
pub(super) async fn handle_scrape(
    edge: &Arc<Edge>,
    principal: &Principal,
    kind: TokenKind,
    method: &Method,
) -> EdgeResponse {
    if principal.role != Role::Owner && kind != TokenKind::Viewer {
        let refused = format!("{}\n", AuthError::Forbidden);
        return response_body::text_response(StatusCode::FORBIDDEN, refused);
    }
    if method != Method::GET {
        let mut response = response_body::empty_response(StatusCode::METHOD_NOT_ALLOWED);
        let allowed = HeaderValue::from_static("GET");
        response.headers_mut().insert(header::ALLOW, allowed);
        return response;
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsScrape::collect(edge).await));
    let mut written = String::new();
    // Writing to a string cannot fail.
    let _never = text::encode(&mut written, &registry);
    let mut response = response_body::text_response(StatusCode::OK, written);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, OPEN_METRICS);
    response
}

/// Sampled state of a server.
#[derive(Debug)]
struct ServerSample {
    status: ServerStatus,
    queued: usize,
    totals: LoadTotals,
}

/// All values of a scrape.
#[derive(Debug)]
struct MetricsScrape {
    uptime_ms: u64,
    sessions: usize,
    streams: usize,
    process: ProcessMetrics,
    servers: Vec<ServerSample>,
    outbox: OutboxMetrics,
    broker: BrokerMetrics,
    executors: ExecutorMetrics,
    shares: ShareMetrics,
    /// Denials per kind of rule.
    denials: Vec<(&'static str, u64)>,
    /// Authentication failures by reason and route.
    auth_failures: Vec<(&'static str, &'static str, u64)>,
    /// Audit rows exported and lost; absent without export.
    exported: Option<(u64, u64)>,
    /// Spans exported and lost; absent without export.
    spans: Option<(u64, u64)>,
}

impl MetricsScrape {
    async fn collect(edge: &Edge) -> Self {
        let (sessions, streams) = edge.sessions.count_streams();
        Self {
            uptime_ms: edge.host.clock().now().0,
            sessions,
            streams,
            process: ProcessMetrics::collect(),
            servers: sample_servers(edge).await,
            outbox: OutboxMetrics::collect(edge).await,
            broker: BrokerMetrics::collect(edge).await,
            executors: ExecutorMetrics::collect(edge),
            shares: ShareMetrics::collect(edge),
            denials: edge.host.denial_counts(),
            auth_failures: edge.auth_failures.snapshot(),
            exported: (edge.info.audit.export_counts())
                .map(|counts| (counts.sent_count(), counts.lost_count())),
            spans: edge
                .call_tracing
                .counts
                .as_ref()
                .map(|counts| (counts.sent_count(), counts.lost_count())),
        }
    }

    fn write_gateway(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.write_info(metric_names::BUILD, "The gateway that is running", &version)?;
        let uptime = to_seconds(self.uptime_ms);
        out.write_gauge(
            metric_names::UPTIME,
            "How long the gateway has run",
            &uptime,
        )?;
        out.write_gauge(
            metric_names::SESSIONS,
            "Sessions that are open",
            &to_u64(self.sessions),
        )?;
        out.write_gauge(
            metric_names::STREAMS,
            "Streams of events that are open",
            &to_u64(self.streams),
        )?;
        if let Some(bytes) = self.process.memory_bytes {
            out.write_gauge(
                metric_names::MEMORY,
                "Memory that the gateway holds",
                &bytes,
            )?;
        }
        if let Some(open) = self.process.descriptors {
            out.write_gauge(
                metric_names::DESCRIPTORS,
                "Descriptors that the gateway has open",
                &open,
            )?;
        }
        Ok(())
    }

    fn write_lifecycle(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let servers = &self.servers;
        out.write_server_gauges(
            metric_names::UP,
            "Whether the server serves",
            servers,
            |server| u64::from(server.status.active),
        )?;
        out.write_states(servers)?;
        out.write_server_gauges(
            metric_names::GENERATION,
            "How often the server was started",
            servers,
            |server| server.status.generation,
        )?;
        out.write_server_gauges(
            metric_names::RESTARTS,
            "Restarts still counted against the budget of the server",
            servers,
            |server| server.status.restart_count,
        )?;
        out.write_server_gauges(
            metric_names::CIRCUIT_OPEN,
            "Whether calls to the server are refused to let it rest",
            servers,
            |server| u64::from(server.status.circuit == "open"),
        )?;
        out.write_memory(servers)
    }

    fn write_pins(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let servers = &self.servers;
        let help = "Tools whose definition is not the approved one";
        out.write_server_gauges(metric_names::PINS_CHANGED, help, servers, |server| {
            to_u64(server.status.pins.changed)
        })?;
        let help = "Tools that are odd and that nobody accepted yet";
        out.write_server_gauges(metric_names::PINS_QUARANTINED, help, servers, |server| {
            to_u64(server.status.pins.quarantined)
        })?;
        let help = "Whether pins of the server cannot be read or kept";
        out.write_server_gauges(metric_names::PINS_FAILED, help, servers, |server| {
            u64::from(server.status.pins.error.is_some())
        })
    }

    fn write_calls(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let servers = &self.servers;
        out.write_server_gauges(
            metric_names::IN_FLIGHT,
            "Calls under way",
            servers,
            |server| to_u64(server.status.in_flight),
        )?;
        let help = "Calls that wait for a place at the server";
        out.write_server_gauges(metric_names::QUEUED, help, servers, |server| {
            to_u64(server.queued)
        })?;
        out.write_call_outcomes(servers)?;
        let help = "Calls that were not run because the server had too many";
        out.write_server_counters(metric_names::SHED, help, servers, |server| {
            server.totals.shed_count()
        })?;
        let help = "Calls that were sent a second time";
        out.write_server_counters(metric_names::RETRIED, help, servers, |server| {
            server.totals.retry_count()
        })?;
        out.write_durations(servers)
    }
}

impl MetricsScrape {
    fn write_cache(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let servers = &self.servers;
        let help = "Answers of the server that are kept";
        out.write_server_gauges(metric_names::CACHE_ENTRIES, help, servers, |server| {
            to_u64(server.status.cache.entries)
        })?;
        let help = "How long the answers are together that are kept";
        out.write_server_gauges(metric_names::CACHE_BYTES, help, servers, |server| {
            to_u64(server.status.cache.bytes)
        })?;
        let help = "Calls that were answered without the server";
        out.write_server_counters(metric_names::CACHE_HITS, help, servers, |server| {
            server.status.cache.hits
        })?;
        let help = "Calls that had to go to the server though its answers can be kept";
        out.write_server_counters(metric_names::CACHE_MISSES, help, servers, |server| {
            server.status.cache.misses
        })?;
        let help = "Answers that went before their time, to make room";
        out.write_server_counters(metric_names::CACHE_EVICTIONS, help, servers, |server| {
            server.status.cache.evictions
        })
    }
}

impl Collector for MetricsScrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricsWriter(encoder);
        self.write_gateway(&mut out)?;
        self.write_lifecycle(&mut out)?;
        self.write_pins(&mut out)?;
        self.write_calls(&mut out)?;
        self.write_cache(&mut out)?;
        self.outbox.write_metrics(&mut out, &self.servers)?;
        self.broker.write_metrics(&mut out)?;
        self.executors.write_metrics(&mut out)?;
        self.shares.write_metrics(&mut out)?;
        out.write_denials(&self.denials)?;
        out.write_auth_failures(&self.auth_failures)?;
        if let Some((sent, lost)) = self.exported {
            let help = "Audit rows that are shipped, by what became of them";
            out.write_outcomes(
                metric_names::EXPORTED,
                help,
                [("sent", sent), ("lost", lost)],
            )?;
        }
        match self.spans {
            Some((sent, dropped)) => out.write_outcomes(
                metric_names::SPANS,
                "Spans of calls, by what became of them",
                [("sent", sent), ("dropped", dropped)],
            ),
            None => Ok(()),
        }
    }
}

impl ServerSample {
    fn name(&self) -> &str {
        &self.status.name
    }
}

/// Samples all servers; a server removed concurrently is skipped.
async fn sample_servers(edge: &Edge) -> Vec<ServerSample> {
    let all = edge.host.status_with_memory().await.into_iter();
    let all = all.filter_map(|status| {
        let server = edge.host.server(&status.name).ok()?;
        Some(ServerSample {
            queued: server.queued_calls(),
            totals: server.totals(),
            status,
        })
    });
    all.collect()
}

fn to_u64(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Converts milliseconds to seconds; the loss of precision is negligible.
fn to_seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
