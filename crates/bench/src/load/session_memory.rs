//! `mcpbench open`: sessions that stay open, and the memory of the gateway before and after.

use std::{
    cell::{Cell, RefCell},
    mem,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;
use tokio::task::{LocalSet, spawn_local};

use super::{LoadOperation, parse_endpoint};
use crate::build_runtime;
use crate::client::{BenchClient, TargetEndpoint};
use crate::options::ToolOptions;
use crate::process_usage::tree_usage;

/// Time for the gateway to finish what the last call left behind.
const SETTLE_TIME: Duration = Duration::from_millis(500);
const KIB_PER_MIB: f64 = 1024.0;

#[derive(Debug)]
struct SessionOpener {
    endpoint: TargetEndpoint,
    operation: LoadOperation,
    /// Whether every session has a connection of its own.
    has_own_connections: bool,
    remaining: Cell<u64>,
    errors: RefCell<Vec<String>>,
    /// Clients whose connections stay open.
    clients: RefCell<Vec<BenchClient>>,
}

impl SessionOpener {
    async fn run(self: Rc<Self>) {
        let mut client = BenchClient::new(self.endpoint.clone());
        while let Some(nth) = self.remaining.get().checked_sub(1) {
            self.remaining.set(nth);
            let opened = self.operation.run_in_new_session(&mut client, nth).await;
            if let Err(error) = opened {
                self.errors.borrow_mut().push(format!("{error:#}"));
            }
            if self.has_own_connections {
                let next = BenchClient::new(self.endpoint.clone());
                let opened = mem::replace(&mut client, next);
                self.clients.borrow_mut().push(opened);
            }
        }
        self.clients.borrow_mut().push(client);
    }
}

/// Opens `--n` sessions (initialize, initialized, one operation) and prints one JSON line.
pub(crate) fn open_sessions(options: &ToolOptions) -> Result<()> {
    let sessions = options.number("n", 1000)?;
    let pid = options.number("pid", 0)?;
    let connections: usize = options.number("c", 16)?;
    let opener = Rc::new(SessionOpener {
        endpoint: parse_endpoint(options)?,
        operation: LoadOperation::from_options(options)?,
        has_own_connections: options.has_flag("own-connection"),
        remaining: Cell::new(sessions),
        errors: RefCell::default(),
        clients: RefCell::default(),
    });
    LocalSet::new().block_on(&build_runtime()?, async {
        let before = tree_usage(pid);
        let start = Instant::now();
        let runs = (0..connections).map(|_| spawn_local(Rc::clone(&opener).run()));
        for run in runs.collect::<Vec<_>>() {
            run.await?;
        }
        let seconds = start.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE_TIME).await;
        let after = tree_usage(pid);
        let errors = opener.errors.borrow();
        let rss = [before, after].map(|usage| usage.gateway.rss_kib as f64);
        let [rss_before, rss_after] = rss;
        let count = sessions as f64;
        let report = json!({
            "sessions": sessions, "errors": errors.len(), "first_error": errors.first(),
            "secs": seconds, "per_s": count / seconds,
            "rss_before_mib": rss_before / KIB_PER_MIB, "rss_after_mib": rss_after / KIB_PER_MIB,
            "kib_per_session": (rss_after - rss_before) / count,
            "child_procs_after": after.backends.processes,
            "child_rss_mib_after": after.backends.rss_kib as f64 / KIB_PER_MIB,
            "threads_after": after.gateway.threads,
            "cpu_us_per_session": (after.gateway - before.gateway) as f64 / count,
        });
        println!("{report}");
        Ok(())
    })
}
