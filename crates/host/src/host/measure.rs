//! How much memory servers use, looked at away from the thread that carries calls.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::CallError;
use bowline_link::{Processes, Usage};

use super::Host;
use crate::supervisor::ServerStatus;

/// A look at all servers takes no longer; what is not known by then is left out.
const MEASURE_MAX: Duration = Duration::from_millis(500);

impl Host {
    /// Returns the state of every server, by name, with the memory that it uses now.
    pub async fn measured(&self) -> Vec<ServerStatus> {
        let mut list = self.status();
        self.measure(&mut list).await;
        list
    }

    /// Returns the state of one server, with the memory that it uses now.
    pub async fn measured_of(&self, name: &str) -> Result<ServerStatus, CallError> {
        let mut one = [self.status_of(name)?];
        self.measure(&mut one).await;
        let [one] = one;
        Ok(one)
    }

    async fn measure(&self, list: &mut [ServerStatus]) {
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
        let look = async {
            let turn = Arc::clone(&self.measuring).acquire_owned().await.ok()?;
            let look = move || {
                // Held to the end, also when nobody waits for it any more.
                let _turn = turn;
                trees.iter().map(|trees| usage(trees)).collect::<Vec<_>>()
            };
            tokio::task::spawn_blocking(look).await.ok()
        };
        let Ok(Some(usages)) = tokio::time::timeout(MEASURE_MAX, look).await else {
            return;
        };
        for (status, usage) in list.iter_mut().zip(usages) {
            status.processes = usage.map(|usage| usage.processes);
            status.memory_bytes = usage.map(|usage| usage.memory_bytes);
        }
    }
}

/// What all links of one server use together; nothing where none of them is a child.
fn usage(trees: &[Processes]) -> Option<Usage> {
    let each = trees.iter().map(|tree| tree.usage());
    each.reduce(|a, b| Usage {
        processes: a.processes.saturating_add(b.processes),
        memory_bytes: a.memory_bytes.saturating_add(b.memory_bytes),
    })
}
