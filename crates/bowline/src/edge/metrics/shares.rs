//! What principals hold of what they share, by resource and never by principal.

use std::fmt;

use bowline_core::shares::ShareView;
use prometheus_client::metrics::MetricType;

use super::{NoLabelSet, Out, name};
use crate::edge::Edge;

/// How the shared resources of a gateway stand.
#[derive(Debug)]
pub(super) struct Shares(Vec<ShareView>);

impl Shares {
    pub(super) fn of(edge: &Edge) -> Self {
        Self(edge.host.accounts().view())
    }

    pub(super) fn write(&self, out: &mut Out<'_>) -> fmt::Result {
        let help = "What all principals hold of a resource";
        self.gauges(out, (name::SHARE_USED, help), |view| view.used)?;
        let help = "What all principals may hold of a resource";
        self.gauges(out, (name::SHARE_LIMIT, help), |view| view.limit.total)?;
        let help = "Shares of a resource that were refused";
        let kind = MetricType::Counter;
        let mut family = out
            .0
            .encode_descriptor(name::SHARE_REFUSED, help, None, kind)?;
        for view in &self.0 {
            let labels = [("resource", view.resource.name())];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&view.refused, None)?;
        }
        Ok(())
    }

    fn gauges(
        &self,
        out: &mut Out<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&ShareView) -> u64,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut family = out.0.encode_descriptor(name, help, None, kind)?;
        for view in &self.0 {
            let labels = [("resource", view.resource.name())];
            family.encode_family(&labels)?.encode_gauge(&value(view))?;
        }
        Ok(())
    }
}
