//! Results of a load: latencies, errors, and the CPU time of everyone involved.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::process_usage::{ProcessUsage, machine_busy_us, process_usage, tree_usage};

/// Different errors that a report quotes.
const ERROR_SAMPLES_MAX: usize = 8;
const KIB_PER_MIB: f64 = 1024.0;

#[derive(Debug, Default)]
pub(super) struct LoadStats {
    latencies: RefCell<Vec<Duration>>,
    error_samples: RefCell<BTreeMap<String, u64>>,
    errors: Cell<u64>,
    reconnects: Cell<u64>,
}

impl LoadStats {
    pub(super) fn record_latency(&self, latency: Duration) {
        self.latencies.borrow_mut().push(latency);
    }

    pub(super) fn record_error(&self, error: String) {
        self.errors.set(self.errors.get() + 1);
        let mut samples = self.error_samples.borrow_mut();
        if samples.len() < ERROR_SAMPLES_MAX || samples.contains_key(&error) {
            *samples.entry(error).or_default() += 1;
        }
    }

    pub(super) fn add_reconnects(&self, count: u64) {
        self.reconnects.set(self.reconnects.get() + count);
    }
}

/// CPU time and memory at one moment.
#[derive(Debug)]
pub(super) struct UsageSnapshot {
    at: Instant,
    gateway: ProcessUsage,
    /// Stdio backends below the gateway.
    children: ProcessUsage,
    /// Backends beside the gateway.
    backends: ProcessUsage,
    load: ProcessUsage,
    machine_us: u64,
}

impl UsageSnapshot {
    pub(super) fn take(gateways: &[u32], backends: &[u32]) -> Self {
        let (mut gateway, mut children) = (ProcessUsage::default(), ProcessUsage::default());
        for tree in gateways.iter().map(|pid| tree_usage(*pid)) {
            gateway += tree.gateway;
            children += tree.backends;
        }
        let mut backend = ProcessUsage::default();
        for usage in backends.iter().map(|pid| process_usage(*pid)) {
            backend += usage;
        }
        Self {
            at: Instant::now(),
            gateway,
            children,
            backends: backend,
            load: process_usage(std::process::id()),
            machine_us: machine_busy_us(),
        }
    }
}

/// Returns the report of a run.
pub(super) fn write_report(
    callers: usize,
    stats: &LoadStats,
    before: &UsageSnapshot,
    after: &UsageSnapshot,
) -> Value {
    let mut latencies = stats.latencies.borrow_mut();
    latencies.sort_unstable();
    let seconds = (after.at - before.at).as_secs_f64();
    let gateway = after.gateway - before.gateway;
    let children = after.children - before.children;
    let backends = after.backends - before.backends;
    let load = after.load - before.load;
    let busy = after.machine_us.saturating_sub(before.machine_us);
    let others = busy.saturating_sub(gateway + children + backends + load);
    let count = latencies.len();
    let per_request = |cpu_us: u64| match count {
        0 => Value::Null,
        _ => json!(round_to(cpu_us as f64 / count as f64, 2)),
    };
    json!({
        "c": callers, "secs": seconds, "ok": count, "errors": stats.errors.get(),
        "rps": round_to(count as f64 / seconds, 1),
        "p50_us": percentile_us(&latencies, 0.5), "p90_us": percentile_us(&latencies, 0.9),
        "p99_us": percentile_us(&latencies, 0.99), "p999_us": percentile_us(&latencies, 0.999),
        "max_us": percentile_us(&latencies, 1.0),
        "gw_cpu_us": per_request(gateway), "child_cpu_us": per_request(children),
        "backend_cpu_us": per_request(backends), "load_cpu_us": per_request(load),
        "gw_rss_mib": after.gateway.rss_kib as f64 / KIB_PER_MIB,
        "gw_threads": after.gateway.threads, "gw_procs": after.gateway.processes,
        "child_procs": after.children.processes,
        "other_cores": round_to(others as f64 / (seconds * 1e6), 2),
        "reconnects": stats.reconnects.get(), "error_samples": *stats.error_samples.borrow(),
    })
}

/// Returns the latency that a share of the requests did not exceed.
fn percentile_us(sorted: &[Duration], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let nth = ((sorted.len() as f64 * share) as usize).min(last);
    Some(sorted.get(nth)?.as_nanos() as f64 / 1_000.0)
}

fn round_to(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_sorted_latencies() {
        let latencies: Vec<Duration> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!(percentile_us(&latencies, 0.5), Some(51.0));
        assert_eq!(percentile_us(&latencies, 1.0), Some(100.0));
        assert_eq!(percentile_us(&[], 0.5), None);
    }

    #[test]
    fn error_samples_are_bounded() {
        let stats = LoadStats::default();
        (0..20).for_each(|nth| stats.record_error(format!("error {nth}")));
        assert_eq!(stats.errors.get(), 20);
        assert_eq!(stats.error_samples.borrow().len(), ERROR_SAMPLES_MAX);
    }
}
