//! Calls that wait for their servers, and whether they can be kept at all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bowline_host::outbox::ServerLetters;
use bowline_journal::Health;
use prometheus_client::encoding::EncodeGaugeValue;
use prometheus_client::metrics::MetricType;

use super::{Out, Seen, name, seconds};
use crate::edge::Edge;

/// What waits, by server.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Whether the journal takes new calls.
    takes: bool,
    /// Lanes that are stopped by damage on the disk.
    stopped: u64,
    by_server: BTreeMap<Arc<str>, ServerLetters>,
}

impl Waiting {
    /// Asks the journal; one that cannot be read shows nothing, and says so.
    pub(super) async fn of(edge: &Edge) -> Self {
        let outbox = edge.host.outbox();
        let by_server = outbox.stats().await;
        Self {
            takes: outbox.health() == Health::Good && by_server.is_ok(),
            stopped: outbox.journal().stopped_lanes().len() as u64,
            by_server: by_server.unwrap_or_default(),
        }
    }

    /// Writes one gauge for each server that is configured.
    fn each<V: EncodeGaugeValue>(
        &self,
        out: &mut Out<'_>,
        (name, help): (&str, &str),
        servers: &[Seen],
        value: impl Fn(&ServerLetters) -> V,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = out.0.encode_descriptor(name, help, None, kind)?;
        let nothing = ServerLetters::default();
        for server in servers {
            let letters = self.by_server.get(server.name()).unwrap_or(&nothing);
            let labels = [("server", server.name())];
            let gauge = value(letters);
            family.encode_family(&labels)?.encode_gauge(&gauge)?;
        }
        Ok(())
    }

    pub(super) fn write(&self, out: &mut Out<'_>, servers: &[Seen]) -> fmt::Result {
        let help = "Whether the journal takes new calls";
        out.gauge(name::JOURNAL_UP, help, &u64::from(self.takes))?;
        let help = "Lanes of the journal that are stopped by damage on the disk";
        out.gauge(name::LANES_STOPPED, help, &self.stopped)?;
        let what = (name::OUTBOX_QUEUED, "Calls that are kept for the server");
        self.each(out, what, servers, |letters| letters.queued)?;
        let what = (name::OUTBOX_DEAD, "Kept calls that could not be delivered");
        self.each(out, what, servers, |letters| letters.dead)?;
        let what = (name::OUTBOX_OLDEST, "How long the oldest kept call waits");
        self.each(out, what, servers, |letters| {
            seconds(letters.oldest_age_ms.unwrap_or_default())
        })
    }
}
