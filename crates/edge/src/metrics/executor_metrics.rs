//! Executor metrics: connections and traffic.

use std::fmt;

use prometheus_client::metrics::MetricType;

use super::{MetricsWriter, metric_names, to_u64};
use crate::Edge;

/// Sampled state of all executors.
#[derive(Debug)]
pub(super) struct ExecutorMetrics {
    connected: usize,
    streams: u64,
    opened: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl ExecutorMetrics {
    pub(super) fn collect(edge: &Edge) -> Self {
        let all = edge.executors.list_statuses();
        let carried = || all.iter().map(|one| one.traffic);
        Self {
            connected: all.iter().filter(|one| one.connected).count(),
            streams: carried().map(|one| one.streams).sum(),
            opened: carried().map(|one| one.opened).sum(),
            sent_bytes: carried().map(|one| one.sent_bytes).sum(),
            received_bytes: carried().map(|one| one.received_bytes).sum(),
        }
    }

    pub(super) fn write_metrics(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let help = "Executors that are connected";
        out.write_gauge(metric_names::EXECUTORS, help, &to_u64(self.connected))?;
        let help = "Requests and servers that are open on executors";
        out.write_gauge(metric_names::EXECUTOR_STREAMS, help, &self.streams)?;
        let kind = MetricType::Counter;
        let help = "Requests and servers that were begun on executors";
        out.0
            .encode_descriptor(metric_names::EXECUTOR_OPENED, help, None, kind)?
            .encode_counter::<super::NoLabelSet, _, u64>(&self.opened, None)?;
        let help = "Bytes of bodies that went through executors";
        let mut family = out
            .0
            .encode_descriptor(metric_names::EXECUTOR_BYTES, help, None, kind)?;
        for (way, bytes) in [("sent", self.sent_bytes), ("received", self.received_bytes)] {
            let labels = [("way", way)];
            family
                .encode_family(&labels)?
                .encode_counter::<super::NoLabelSet, _, u64>(&bytes, None)?;
        }
        Ok(())
    }
}
