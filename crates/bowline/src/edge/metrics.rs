//! `/metrics`: what is counted anyway, written down when somebody asks. For the owner and viewers.

mod broker;
mod executors;
mod name;
mod outbox;
mod own;
mod shares;

use std::fmt;
use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_core::load::Totals;
use bowline_host::supervisor::ServerStatus;
use http::{HeaderValue, Method, StatusCode, header};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use self::broker::Broker;
use self::executors::Executors;
use self::outbox::Waiting;
use self::own::Own;
use self::shares::Shares;
use super::Edge;
use super::body::{self, Answer};
use super::door::Refused;
use crate::tokens::TokenKind;

/// The media type of what is written.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Every state a server can be in, so that each has a series from the start.
const STATES: [&str; 8] = [
    "idle", "stopped", "starting", "ready", "probing", "backoff", "ejected", "draining",
];

/// Answers one scrape.
pub(super) async fn answer(
    edge: &Arc<Edge>,
    (principal, kind): (&Principal, TokenKind),
    method: &Method,
) -> Answer {
    if principal.role != Role::Owner && kind != TokenKind::Viewer {
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
    registry.register_collector(Box::new(Scrape::of(edge).await));
    let mut written = String::new();
    // A string takes all that is written to it.
    let _never = text::encode(&mut written, &registry);
    let mut answer = body::text(StatusCode::OK, written);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, OPEN_METRICS);
    answer
}

/// What is known of one server.
#[derive(Debug)]
struct Seen {
    status: ServerStatus,
    queued: usize,
    totals: Totals,
}

/// All that is told by one scrape.
#[derive(Debug)]
struct Scrape {
    uptime_ms: u64,
    sessions: usize,
    streams: usize,
    own: Own,
    servers: Vec<Seen>,
    waiting: Waiting,
    broker: Broker,
    executors: Executors,
    shares: Shares,
    /// How often each sort of rule denied somebody something.
    denials: Vec<(&'static str, u64)>,
    /// How often callers did not prove who they are, by reason and route.
    unproven: Vec<(&'static str, &'static str, u64)>,
    /// Audit rows that a receiver took, and that were lost; absent where none are shipped.
    exported: Option<(u64, u64)>,
    /// Spans that a collector took, and that were lost; absent where they go nowhere.
    spans: Option<(u64, u64)>,
}

impl Scrape {
    async fn of(edge: &Edge) -> Self {
        let (sessions, streams) = edge.sessions.count();
        Self {
            uptime_ms: edge.host.clock().now().0,
            sessions,
            streams,
            own: Own::read(),
            servers: seen(edge).await,
            waiting: Waiting::of(edge).await,
            broker: Broker::of(edge).await,
            executors: Executors::of(edge),
            shares: Shares::of(edge),
            denials: edge.host.denials(),
            unproven: edge.unproven.counts(),
            exported: (edge.about.audit.export()).map(|counts| (counts.sent(), counts.lost())),
            spans: edge
                .traces
                .counts
                .as_ref()
                .map(|counts| (counts.sent(), counts.dropped())),
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
            u64::from(server.status.active)
        })?;
        out.states(servers)?;
        out.gauges(
            name::GENERATION,
            "How often the server was started",
            servers,
            |server| server.status.generation,
        )?;
        out.gauges(
            name::RESTARTS,
            "Restarts still counted against the budget of the server",
            servers,
            |server| server.status.restart_count,
        )?;
        out.gauges(
            name::CIRCUIT_OPEN,
            "Whether calls to the server are refused to let it rest",
            servers,
            |server| u64::from(server.status.circuit == "open"),
        )?;
        out.memory(servers)
    }

    fn pins(&self, out: &mut Out<'_>) -> fmt::Result {
        let servers = &self.servers;
        let help = "Tools whose definition is not the approved one";
        out.gauges(name::PINS_CHANGED, help, servers, |server| {
            count(server.status.pins.changed)
        })?;
        let help = "Tools that are odd and that nobody accepted yet";
        out.gauges(name::PINS_QUARANTINED, help, servers, |server| {
            count(server.status.pins.quarantined)
        })?;
        let help = "Whether pins of the server cannot be read or kept";
        out.gauges(name::PINS_FAILED, help, servers, |server| {
            u64::from(server.status.pins.error.is_some())
        })
    }

    fn calls(&self, out: &mut Out<'_>) -> fmt::Result {
        let servers = &self.servers;
        out.gauges(name::IN_FLIGHT, "Calls under way", servers, |server| {
            count(server.status.in_flight)
        })?;
        let help = "Calls that wait for a place at the server";
        out.gauges(name::QUEUED, help, servers, |server| count(server.queued))?;
        out.ended(servers)?;
        let help = "Calls that were not run because the server had too many";
        out.counters(name::SHED, help, servers, |server| server.totals.sheds())?;
        let help = "Calls that were sent a second time";
        out.counters(name::RETRIED, help, servers, |server| {
            server.totals.retries()
        })?;
        out.durations(servers)
    }
}

impl Scrape {
    fn cache(&self, out: &mut Out<'_>) -> fmt::Result {
        let servers = &self.servers;
        let help = "Answers of the server that are kept";
        out.gauges(name::CACHE_ENTRIES, help, servers, |server| {
            count(server.status.cache.entries)
        })?;
        let help = "How long the answers are together that are kept";
        out.gauges(name::CACHE_BYTES, help, servers, |server| {
            count(server.status.cache.bytes)
        })?;
        let help = "Calls that were answered without the server";
        out.counters(name::CACHE_HITS, help, servers, |server| {
            server.status.cache.hits
        })?;
        let help = "Calls that had to go to the server though its answers can be kept";
        out.counters(name::CACHE_MISSES, help, servers, |server| {
            server.status.cache.misses
        })?;
        let help = "Answers that went before their time, to make room";
        out.counters(name::CACHE_EVICTIONS, help, servers, |server| {
            server.status.cache.evictions
        })
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.gateway(&mut out)?;
        self.lives(&mut out)?;
        self.pins(&mut out)?;
        self.calls(&mut out)?;
        self.cache(&mut out)?;
        self.waiting.write(&mut out, &self.servers)?;
        self.broker.write(&mut out)?;
        self.executors.write(&mut out)?;
        self.shares.write(&mut out)?;
        out.denied(&self.denials)?;
        out.unproven(&self.unproven)?;
        if let Some((sent, lost)) = self.exported {
            let help = "Audit rows that are shipped, by what became of them";
            out.outcomes((name::EXPORTED, help), [("sent", sent), ("lost", lost)])?;
        }
        match self.spans {
            Some((sent, dropped)) => out.outcomes(
                (name::SPANS, "Spans of calls, by what became of them"),
                [("sent", sent), ("dropped", dropped)],
            ),
            None => Ok(()),
        }
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
        servers: &[Seen],
        value: impl Fn(&Seen) -> V,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for server in servers {
            let labels = [("server", server.name())];
            family
                .encode_family(&labels)?
                .encode_gauge(&value(server))?;
        }
        Ok(())
    }

    /// Writes for each server and state whether it is that one.
    fn states(&mut self, servers: &[Seen]) -> fmt::Result {
        let (help, kind) = ("What the server is doing", MetricType::Gauge);
        let mut family = self.0.encode_descriptor(name::STATE, help, None, kind)?;
        for server in servers {
            for state in STATES {
                let labels = [("server", server.name()), ("state", state)];
                let is = u64::from(server.status.state == state);
                family.encode_family(&labels)?.encode_gauge(&is)?;
            }
        }
        Ok(())
    }

    /// Writes the memory of each server whose processes run here.
    fn memory(&mut self, servers: &[Seen]) -> fmt::Result {
        let help = "Memory that all processes of the server hold";
        let kind = MetricType::Gauge;
        let mut family = self
            .0
            .encode_descriptor(name::SERVER_MEMORY, help, None, kind)?;
        for server in servers {
            if let Some(bytes) = server.status.memory_bytes {
                let labels = [("server", server.name())];
                family.encode_family(&labels)?.encode_gauge(&bytes)?;
            }
        }
        Ok(())
    }

    /// Writes one counter for each server.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        servers: &[Seen],
        value: impl Fn(&Seen) -> u64,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for server in servers {
            family
                .encode_family(&[("server", server.name())])?
                .encode_counter::<NoLabelSet, _, u64>(&value(server), None)?;
        }
        Ok(())
    }

    /// Writes how often each sort of rule denied somebody something.
    fn denied(&mut self, denials: &[(&'static str, u64)]) -> fmt::Result {
        let (help, kind) = (
            "Requests that were denied, by the rule",
            MetricType::Counter,
        );
        let mut family = self.0.encode_descriptor(name::DENIED, help, None, kind)?;
        for (rule, count) in denials {
            family
                .encode_family(&[("rule", *rule)])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    /// Writes how often callers did not prove who they are.
    fn unproven(&mut self, counts: &[(&'static str, &'static str, u64)]) -> fmt::Result {
        let (help, kind) = (
            "Requests that proved nobody, by the reason and the route",
            MetricType::Counter,
        );
        let mut family = (self.0).encode_descriptor(name::UNAUTHENTICATED, help, None, kind)?;
        for (reason, route, count) in counts {
            family
                .encode_family(&[("reason", *reason), ("route", *route)])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    /// Writes how the calls to each server ended.
    fn ended(&mut self, servers: &[Seen]) -> fmt::Result {
        let (help, kind) = ("Calls that ended, by how they did", MetricType::Counter);
        let mut family = self.0.encode_descriptor(name::CALLS, help, None, kind)?;
        for server in servers {
            for (outcome, calls) in server.totals.outcomes() {
                let labels = [("server", server.name()), ("outcome", outcome.as_str())];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&calls, None)?;
            }
        }
        Ok(())
    }

    /// Writes how long the calls took that each server had.
    fn durations(&mut self, servers: &[Seen]) -> fmt::Result {
        let help = "How long calls took that the server had";
        let kind = MetricType::Histogram;
        let mut family = self.0.encode_descriptor(name::DURATION, help, None, kind)?;
        for server in servers {
            let totals = &server.totals;
            let (sum, count) = (totals.timed_us() as f64 / 1e6, totals.timed());
            family
                .encode_family(&[("server", server.name())])?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets(totals), None)?;
        }
        Ok(())
    }

    /// Writes a counter by what became of things.
    fn outcomes(
        &mut self,
        (name, help): (&str, &str),
        outcomes: [(&'static str, u64); 2],
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (outcome, count) in outcomes {
            family
                .encode_family(&[("outcome", outcome)])?
                .encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }
}

impl Seen {
    fn name(&self) -> &str {
        &self.status.name
    }
}

/// Returns what is known of each server; one that is taken away in this moment is left out.
async fn seen(edge: &Edge) -> Vec<Seen> {
    let all = edge.host.measured().await.into_iter();
    let all = all.filter_map(|status| {
        let server = edge.host.server(&status.name).ok()?;
        Some(Seen {
            queued: server.queued(),
            totals: server.totals(),
            status,
        })
    });
    all.collect()
}

/// Returns how many calls lie in each bucket by itself, the one without bound included.
fn buckets(totals: &Totals) -> Vec<(f64, u64)> {
    let all = totals.buckets().chain([(f64::INFINITY, totals.timed())]);
    let mut below = 0;
    all.map(|(bound, upto)| {
        let within = upto.saturating_sub(below);
        below = upto;
        (bound, within)
    })
    .collect()
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Whole milliseconds as seconds; what is lost of them is far below what anybody reads.
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}
