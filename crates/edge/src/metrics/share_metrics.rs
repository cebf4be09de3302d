//! Share metrics by resource, never by principal.

use std::fmt;

use bowline_core::shares::ShareView;
use prometheus_client::metrics::MetricType;

use super::{MetricsWriter, NoLabelSet, metric_names};
use crate::Edge;

/// Sampled state of all shared resources.
#[derive(Debug)]
pub(super) struct ShareMetrics(Vec<ShareView>);

impl ShareMetrics {
    pub(super) fn collect(edge: &Edge) -> Self {
        Self(edge.host.accounts().usage())
    }

    pub(super) fn write_metrics(&self, out: &mut MetricsWriter<'_>) -> fmt::Result {
        let help = "What all principals hold of a resource";
        self.write_gauges(out, metric_names::SHARE_USED, help, |view| view.used)?;
        let help = "What all principals may hold of a resource";
        self.write_gauges(out, metric_names::SHARE_LIMIT, help, |view| {
            view.limit.total
        })?;
        let help = "Shares of a resource that were refused";
        let kind = MetricType::Counter;
        let mut family = out
            .0
            .encode_descriptor(metric_names::SHARE_REFUSED, help, None, kind)?;
        for view in &self.0 {
            let labels = [("resource", view.resource.name())];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&view.refusals, None)?;
        }
        Ok(())
    }

    fn write_gauges(
        &self,
        out: &mut MetricsWriter<'_>,
        name: &str,
        help: &str,
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
