//! `/metrics`: what is counted anyway, written down when somebody asks. For the owner only.

mod own;

use std::fmt;
use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_host::supervisor::ServerStatus;
use http::{HeaderValue, Method, StatusCode, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use self::own::Own;
use super::Edge;
use super::body::{self, Answer};
use super::door::Refused;

/// The media type of what is written.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The names. A counter is written with `_total` and an info with `_info` behind it.
mod name {
    pub(super) const BUILD: &str = "bowline_build";
    pub(super) const UPTIME: &str = "bowline_uptime_seconds";
    pub(super) const SESSIONS: &str = "bowline_sessions";
    pub(super) const STREAMS: &str = "bowline_streams";
    pub(super) const MEMORY: &str = "process_resident_memory_bytes";
    pub(super) const DESCRIPTORS: &str = "process_open_fds";
    pub(super) const UP: &str = "bowline_server_up";
    pub(super) const STATE: &str = "bowline_server_state";
    pub(super) const GENERATION: &str = "bowline_server_generation";
    pub(super) const RESTARTS: &str = "bowline_server_restarts";
    pub(super) const IN_FLIGHT: &str = "bowline_server_in_flight";
    pub(super) const CIRCUIT_OPEN: &str = "bowline_circuit_open";
    pub(super) const CALLS: &str = "bowline_calls";
}

/// Every state a server can be in, so that each has a series from the start.
const STATES: [&str; 8] = [
    "idle", "stopped", "starting", "ready", "probing", "backoff", "ejected", "draining",
];

/// Answers one scrape.
pub(super) fn answer(edge: &Arc<Edge>, principal: &Principal, method: &Method) -> Answer {
    if principal.role != Role::Owner {
        let refused = format!("{}\n", Refused::Forbidden);
        return body::text(StatusCode::FORBIDDEN, refused);
    }
    if method != Method::GET {
        let mut answer = body::empty(StatusCode::METHOD_NOT_ALLOWED);
        let allowed = HeaderValue::from_static("GET");
        answer.headers_mut().insert(header::ALLOW, allowed);
        return answer;
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape::of(edge)));
    let mut written = String::new();
    // A string takes all that is written to it.
    let _never = text::encode(&mut written, &registry);
    let mut answer = body::text(StatusCode::OK, written);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, OPEN_METRICS);
    answer
}

/// All that is told by one scrape.
#[derive(Debug)]
struct Scrape {
    uptime_ms: u64,
    sessions: usize,
    streams: usize,
    own: Own,
    servers: Vec<ServerStatus>,
}

impl Scrape {
    fn of(edge: &Edge) -> Self {
        let (sessions, streams) = edge.sessions.count();
        Self {
            uptime_ms: edge.host.clock().now().0,
            sessions,
            streams,
            own: Own::read(),
            servers: edge.host.status(),
        }
    }

    fn gateway(&self, out: &mut Out<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        out.info(name::BUILD, "The gateway that is running", &version)?;
        let uptime = seconds(self.uptime_ms);
        out.gauge(name::UPTIME, "How long the gateway has run", &uptime)?;
        out.gauge(
            name::SESSIONS,
            "Sessions that are open",
            &count(self.sessions),
        )?;
        out.gauge(
            name::STREAMS,
            "Streams of events that are open",
            &count(self.streams),
        )?;
        if let Some(bytes) = self.own.memory_bytes {
            out.gauge(name::MEMORY, "Memory that the gateway holds", &bytes)?;
        }
        if let Some(open) = self.own.descriptors {
            out.gauge(
                name::DESCRIPTORS,
                "Descriptors that the gateway has open",
                &open,
            )?;
        }
        Ok(())
    }

    fn lives(&self, out: &mut Out<'_>) -> fmt::Result {
        let servers = &self.servers;
        out.gauges(name::UP, "Whether the server serves", servers, |server| {
            u64::from(server.active)
        })?;
        out.states(servers)?;
        out.gauges(
            name::GENERATION,
            "How often the server was started",
            servers,
            |server| server.generation,
        )?;
        out.gauges(
            name::RESTARTS,
            "Restarts still counted against the budget of the server",
            servers,
            |server| server.restart_count,
        )?;
        out.gauges(
            name::CIRCUIT_OPEN,
            "Whether calls to the server are refused to let it rest",
            servers,
            |server| u64::from(server.circuit == "open"),
        )
    }

    fn calls(&self, out: &mut Out<'_>) -> fmt::Result {
        let servers = &self.servers;
        out.gauges(name::IN_FLIGHT, "Calls under way", servers, |server| {
            count(server.in_flight)
        })?;
        out.ended(servers)
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.gateway(&mut out)?;
        self.lives(&mut out)?;
        self.calls(&mut out)
    }
}

/// Writes families.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn info(&mut self, name: &str, help: &str, labels: &impl EncodeLabelSet) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Info)?
            .encode_info(labels)
    }

    fn gauge(&mut self, name: &str, help: &str, value: &impl EncodeGaugeValue) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(value)
    }

    /// Writes one gauge for each server.
    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        servers: &[ServerStatus],
        value: impl Fn(&ServerStatus) -> V,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for server in servers {
            let labels = [("server", &*server.name)];
            family
                .encode_family(&labels)?
                .encode_gauge(&value(server))?;
        }
        Ok(())
    }

    /// Writes for each server and state whether it is that one.
    fn states(&mut self, servers: &[ServerStatus]) -> fmt::Result {
        let (help, kind) = ("What the server is doing", MetricType::Gauge);
        let mut family = self.0.encode_descriptor(name::STATE, help, None, kind)?;
        for server in servers {
            for state in STATES {
                let labels = [("server", &*server.name), ("state", state)];
                let is = u64::from(server.state == state);
                family.encode_family(&labels)?.encode_gauge(&is)?;
            }
        }
        Ok(())
    }

    /// Writes how the calls to each server ended.
    fn ended(&mut self, servers: &[ServerStatus]) -> fmt::Result {
        let (help, kind) = ("Calls that ended, by how they did", MetricType::Counter);
        let mut family = self.0.encode_descriptor(name::CALLS, help, None, kind)?;
        for server in servers {
            let good = server.calls.saturating_sub(server.errors);
            for (outcome, calls) in [("ok", good), ("error", server.errors)] {
                let labels = [("server", &*server.name), ("outcome", outcome)];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&calls, None)?;
            }
        }
        Ok(())
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Whole milliseconds as seconds; what is lost of them is far below what anybody reads.
#[expect(clippy::cast_precision_loss, reason = "exact below 285,000 years")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
