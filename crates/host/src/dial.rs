//! Connects to servers that are child processes.

use std::sync::Arc;

use bowline_link::stderr::StderrLog;
use bowline_link::stdio::{self, ClientInfo, ConnectError, Reaper, StdioLimits, StdioSpec};
use bowline_link::{BoxFuture, Spawner};
use tokio::time::Instant;

use crate::spec::ServerSpec;
use crate::supervisor::{Dial, Dialled};

/// Starts children and speaks with them over their standard streams.
#[derive(Debug)]
pub struct StdioDial<S> {
    spawner: S,
    client: ClientInfo,
    limits: StdioLimits,
}

impl<S: Spawner> StdioDial<S> {
    /// Returns a dialler that presents itself to servers as `client`.
    #[must_use]
    pub const fn new(spawner: S, client: ClientInfo, limits: StdioLimits) -> Self {
        Self {
            spawner,
            client,
            limits,
        }
    }
}

impl<S: Spawner + std::fmt::Debug> Dial for StdioDial<S> {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        Box::pin(async move {
            let spec = StdioSpec {
                server: Arc::clone(&spec.name),
                command: spec.command.clone(),
                args: spec.args.clone(),
                env: spec.env.clone(),
                cwd: spec.cwd.clone(),
                reaper: spec
                    .reaper
                    .clone()
                    .map(|(program, args)| Reaper { program, args }),
                owner: None,
                limits: self.limits,
            };
            let log = Arc::clone(log);
            stdio::connect(&spec, log, self.client.clone(), deadline, &self.spawner).await
        })
    }
}
