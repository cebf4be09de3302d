//! Executors that are connected, and what went through them.

use std::fmt;

use prometheus_client::metrics::MetricType;

use super::{Out, count, name};
use crate::edge::Edge;

/// How the executors of a gateway stand.
#[derive(Debug)]
pub(super) struct Executors {
    connected: usize,
    streams: u64,
    opened: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Executors {
    pub(super) fn of(edge: &Edge) -> Self {
        let all = edge.executors.list();
        let carried = || all.iter().map(|one| one.carried);
        Self {
            connected: all.iter().filter(|one| one.connected).count(),
            streams: carried().map(|one| one.streams).sum(),
            opened: carried().map(|one| one.opened).sum(),
            sent_bytes: carried().map(|one| one.sent_bytes).sum(),
            received_bytes: carried().map(|one| one.received_bytes).sum(),
        }
    }

    pub(super) fn write(&self, out: &mut Out<'_>) -> fmt::Result {
        let help = "Executors that are connected";
        out.gauge(name::EXECUTORS, help, &count(self.connected))?;
        let help = "Requests and servers that are open on executors";
        out.gauge(name::EXECUTOR_STREAMS, help, &self.streams)?;
        let kind = MetricType::Counter;
        let help = "Requests and servers that were begun on executors";
        out.0
            .encode_descriptor(name::EXECUTOR_OPENED, help, None, kind)?
            .encode_counter::<super::NoLabelSet, _, u64>(&self.opened, None)?;
        let help = "Bytes of bodies that went through executors";
        let mut family = out
            .0
            .encode_descriptor(name::EXECUTOR_BYTES, help, None, kind)?;
        for (way, bytes) in [("sent", self.sent_bytes), ("received", self.received_bytes)] {
            let labels = [("way", way)];
            family
                .encode_family(&labels)?
                .encode_counter::<super::NoLabelSet, _, u64>(&bytes, None)?;
        }
        Ok(())
    }
}
