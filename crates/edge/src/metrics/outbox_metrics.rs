//! Outbox metrics: queued calls per server, and journal health.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bowline_host::outbox::ServerQueueView;
use bowline_journal::JournalHealth;
use prometheus_client::encoding::EncodeGaugeValue;
use prometheus_client::metrics::MetricType;

use super::{MetricsWriter, ServerSample, metric_names, to_seconds};
use crate::Edge;

/// Queued calls by server.
#[derive(Debug)]
pub(super) struct OutboxMetrics {
    /// Whether the journal accepts new calls.
    accepts_calls: bool,
    /// Lanes stopped by disk damage.
    stopped_lanes: u64,
    by_server: BTreeMap<Arc<str>, ServerQueueView>,
}

impl OutboxMetrics {
    /// Samples the journal; an unreadable journal counts as down and empty.
    pub(super) async fn collect(edge: &Edge) -> Self {
        let outbox = edge.host.outbox();
        let by_server = outbox.stats().await;
        Self {
            accepts_calls: outbox.health() == JournalHealth::Good && by_server.is_ok(),
            stopped_lanes: outbox.journal().stopped_lanes().len() as u64,
            by_server: by_server.unwrap_or_default(),
        }
    }

    /// Writes a gauge per configured server.
    fn write_server_gauges<V: EncodeGaugeValue>(
        &self,
        out: &mut MetricsWriter<'_>,
        name: &str,
        help: &str,
        servers: &[ServerSample],
        value: impl Fn(&ServerQueueView) -> V,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = out.0.encode_descriptor(name, help, None, kind)?;
        let nothing = ServerQueueView::default();
        for server in servers {
            let queue = self.by_server.get(server.name()).unwrap_or(&nothing);
            let labels = [("server", server.name())];
            let gauge = value(queue);
            family.encode_family(&labels)?.encode_gauge(&gauge)?;
        }
        Ok(())
    }

    pub(super) fn write_metrics(
        &self,
        out: &mut MetricsWriter<'_>,
        servers: &[ServerSample],
    ) -> fmt::Result {
        let help = "Whether the journal takes new calls";
        out.write_gauge(
            metric_names::JOURNAL_UP,
            help,
            &u64::from(self.accepts_calls),
        )?;
        let help = "Lanes of the journal that are stopped by damage on the disk";
        out.write_gauge(metric_names::LANES_STOPPED, help, &self.stopped_lanes)?;
        let (name, help) = (
            metric_names::OUTBOX_QUEUED,
            "Calls that are kept for the server",
        );
        self.write_server_gauges(out, name, help, servers, |queue| queue.queued)?;
        let (name, help) = (
            metric_names::OUTBOX_DEAD,
            "Kept calls that could not be delivered",
        );
        self.write_server_gauges(out, name, help, servers, |queue| queue.dead)?;
        let (name, help) = (
            metric_names::OUTBOX_OLDEST,
            "How long the oldest kept call waits",
        );
        self.write_server_gauges(out, name, help, servers, |queue| {
            to_seconds(queue.oldest_age_ms.unwrap_or_default())
        })
    }
}
