//! Broker metrics: peers, mailboxes and messages.

use std::fmt;

use bowline_host::broker::{HubCounts, MailboxView};
use prometheus_client::metrics::MetricType;

use super::{MetricsWriter, metric_names, to_u64};
use crate::Edge;

/// Sampled state of the broker.
#[derive(Debug)]
pub(super) struct BrokerMetrics {
    peers: usize,
    counts: HubCounts,
    mailboxes: Vec<MailboxView>,
}

impl BrokerMetrics {
    /// Samples the hub; unreadable mailboxes count as empty.
    pub(super) async fn collect(edge: &Edge) -> Self {
        Self {
            peers: edge.hub.peers().len(),
            counts: edge.hub.counts(),
            mailboxes: edge.hub.mailboxes().await.unwrap_or_default(),
        }
    }

    pub(super) fn write_metrics(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let help = "Peers of the broker that are connected";
        out.write_gauge(metric_names::BROKER_PEERS, help, &to_u64(self.peers))?;
        let help = "Messages that wait in all mailboxes";
        let waiting: u64 = self.mailboxes.iter().map(|one| one.waiting).sum();
        out.write_gauge(metric_names::BROKER_WAITING, help, &waiting)?;
        let help = "Messages that wait in the fullest mailbox";
        let deepest = self.mailboxes.iter().map(|one| one.waiting).max();
        out.write_gauge(
            metric_names::BROKER_DEEPEST,
            help,
            &deepest.unwrap_or_default(),
        )?;
        let help = "Dead letters that are kept";
        let dead: u64 = self.mailboxes.iter().map(|one| one.dead).sum();
        out.write_gauge(metric_names::BROKER_DEAD, help, &dead)?;
        let counts = &self.counts;
        let events = [
            ("delivered", counts.delivered),
            ("pushed", counts.pushed),
            ("redelivered", counts.redelivered),
            ("dead", counts.dead),
            ("refused", counts.refused),
            ("fenced", counts.fenced),
        ];
        let help = "What became of messages and frames of peers";
        let kind = MetricType::Counter;
        let mut family = out
            .0
            .encode_descriptor(metric_names::BROKER_EVENTS, help, None, kind)?;
        for (event, number) in events {
            let labels = [("event", event)];
            family
                .encode_family(&labels)?
                .encode_counter::<super::NoLabelSet, _, u64>(&number, None)?;
        }
        Ok(())
    }
}
