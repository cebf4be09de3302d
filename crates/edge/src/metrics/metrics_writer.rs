//! Writes metric families in the text format of the scrape.

use std::fmt;

use bowline_core::load::LoadTotals;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use super::{ServerSample, metric_names};

/// All server states, so that each state has a series from the start.
const SERVER_STATES: [&str; 8] = [
    "idle", "stopped", "starting", "ready", "probing", "backoff", "ejected", "draining",
];

/// Writes metric families.
pub(super) struct MetricsWriter<'a>(pub(super) DescriptorEncoder<'a>);

impl MetricsWriter<'_> {
    pub(super) fn write_info(
        &mut self,
        name: &str,
        help: &str,
        labels: &impl EncodeLabelSet,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Info)?
            .encode_info(labels)
    }

    pub(super) fn write_gauge(
        &mut self,
        name: &str,
        help: &str,
        value: &impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(value)
    }

    /// Writes a gauge per server.
    pub(super) fn write_server_gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        servers: &[ServerSample],
        value: impl Fn(&ServerSample) -> V,
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

    /// Writes a 0/1 gauge per server and state.
    pub(super) fn write_states(&mut self, servers: &[ServerSample]) -> fmt::Result {
        let (help, kind) = ("What the server is doing", MetricType::Gauge);
        let mut family = self
            .0
            .encode_descriptor(metric_names::STATE, help, None, kind)?;
        for server in servers {
            for state in SERVER_STATES {
                let labels = [("server", server.name()), ("state", state)];
                let value = u64::from(server.status.state == state);
                family.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    /// Writes the memory of each server with local processes.
    pub(super) fn write_memory(&mut self, servers: &[ServerSample]) -> fmt::Result {
        let help = "Memory that all processes of the server hold";
        let kind = MetricType::Gauge;
        let mut family = self
            .0
            .encode_descriptor(metric_names::SERVER_MEMORY, help, None, kind)?;
        for server in servers {
            if let Some(bytes) = server.status.memory_bytes {
                let labels = [("server", server.name())];
                family.encode_family(&labels)?.encode_gauge(&bytes)?;
            }
        }
        Ok(())
    }

    /// Writes a counter per server.
    pub(super) fn write_server_counters(
        &mut self,
        name: &str,
        help: &str,
        servers: &[ServerSample],
        value: impl Fn(&ServerSample) -> u64,
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

    /// Writes denials per kind of rule.
    pub(super) fn write_denials(&mut self, denials: &[(&'static str, u64)]) -> fmt::Result {
        let (help, kind) = (
            "Requests that were denied, by the rule",
            MetricType::Counter,
        );
        let mut family = self
            .0
            .encode_descriptor(metric_names::DENIED, help, None, kind)?;
        for (rule, count) in denials {
            family
                .encode_family(&[("rule", *rule)])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    /// Writes authentication failures by reason and route.
    pub(super) fn write_auth_failures(
        &mut self,
        counts: &[(&'static str, &'static str, u64)],
    ) -> fmt::Result {
        let (help, kind) = (
            "Requests that proved nobody, by the reason and the route",
            MetricType::Counter,
        );
        let mut family =
            (self.0).encode_descriptor(metric_names::UNAUTHENTICATED, help, None, kind)?;
        for (reason, route, count) in counts {
            family
                .encode_family(&[("reason", *reason), ("route", *route)])?
                .encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }

    /// Writes finished calls per server and outcome.
    pub(super) fn write_call_outcomes(&mut self, servers: &[ServerSample]) -> fmt::Result {
        let (help, kind) = ("Calls that ended, by how they did", MetricType::Counter);
        let mut family = self
            .0
            .encode_descriptor(metric_names::CALLS, help, None, kind)?;
        for server in servers {
            for (outcome, calls) in server.totals.outcome_counts() {
                let labels = [("server", server.name()), ("outcome", outcome.as_str())];
                family
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, _, u64>(&calls, None)?;
            }
        }
        Ok(())
    }

    /// Writes call durations per server.
    pub(super) fn write_durations(&mut self, servers: &[ServerSample]) -> fmt::Result {
        let help = "How long calls took that the server had";
        let kind = MetricType::Histogram;
        let mut family = self
            .0
            .encode_descriptor(metric_names::DURATION, help, None, kind)?;
        for server in servers {
            let totals = &server.totals;
            let (sum, count) = (totals.timed_sum_us() as f64 / 1e6, totals.timed_count());
            family
                .encode_family(&[("server", server.name())])?
                .encode_histogram::<NoLabelSet>(sum, count, &duration_buckets(totals), None)?;
        }
        Ok(())
    }

    /// Writes a counter by outcome.
    pub(super) fn write_outcomes(
        &mut self,
        name: &str,
        help: &str,
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

/// Returns non-cumulative bucket counts, including the unbounded bucket.
fn duration_buckets(totals: &LoadTotals) -> Vec<(f64, u64)> {
    let all = totals
        .latency_buckets()
        .chain([(f64::INFINITY, totals.timed_count())]);
    let mut below = 0;
    all.map(|(bound, upto)| {
        let within = upto.saturating_sub(below);
        below = upto;
        (bound, within)
    })
    .collect()
}
