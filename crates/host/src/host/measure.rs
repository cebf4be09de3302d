//! Measures the memory of server processes, off the serving thread.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_link::{ProcessSet, ProcessUsage};

use super::Host;
use crate::supervisor::ServerStatus;

/// Maximum duration of a measurement; late values are omitted.
const MEASURE_MAX: Duration = Duration::from_millis(500);

impl Host {
    /// Returns the status of every server with its current memory, by name.
    pub async fn status_with_memory(&self) -> Vec<ServerStatus> {
        let mut list = self.status();
        self.measure_memory(&mut list).await;
        list
    }

    /// Returns the status of a server with its current memory.
    pub async fn server_status_with_memory(&self, name: &str) -> Result<ServerStatus, CallError> {
        let mut one = [self.server_status(name)?];
        self.measure_memory(&mut one).await;
        let [one] = one;
        Ok(one)
    }

    async fn measure_memory(&self, list: &mut [ServerStatus]) {
        let trees: Vec<_> = list
            .iter()
            .map(|status| match self.server(&status.name) {
                Ok(server) => server.processes(),
                Err(_) => Vec::new(),
            })
            .collect();
        if trees.iter().all(Vec::is_empty) {
            return;
        }
        let measurement = async {
            let permit = Arc::clone(&self.measure_permit)
                .acquire_owned()
                .await
                .ok()?;
            let measurement = move || {
                // Held to the end, even if the caller leaves.
                let _permit = permit;
                trees
                    .iter()
                    .map(|trees| total_usage(trees))
                    .collect::<Vec<_>>()
            };
            tokio::task::spawn_blocking(measurement).await.ok()
        };
        let Ok(Some(usages)) = tokio::time::timeout(MEASURE_MAX, measurement).await else {
            return;
        };
        for (status, usage) in list.iter_mut().zip(usages) {
            status.processes = usage.map(|usage| usage.processes);
            status.memory_bytes = usage.map(|usage| usage.memory_bytes);
        }
    }
}

/// Sums the usage over all links of a server; `None` without child processes.
fn total_usage(trees: &[ProcessSet]) -> Option<ProcessUsage> {
    let each = trees.iter().map(|tree| tree.usage());
    each.reduce(|a, b| ProcessUsage {
        processes: a.processes.saturating_add(b.processes),
        memory_bytes: a.memory_bytes.saturating_add(b.memory_bytes),
    })
}
