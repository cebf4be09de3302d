//! Lists that a person or a program has asked for again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::CallError;
use serde::Serialize;

use super::Host;
use crate::catalog::ListKind;
use crate::supervisor::{ServerStatus, Supervisor};

/// How long a server may take to list anew.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);

/// What asking a server for its lists again came to.
#[derive(Clone, Debug, Serialize)]
pub struct Refreshed {
    /// The server, as it is now.
    pub server: ServerStatus,
    /// How many of its tools were not there before.
    pub tools_added: usize,
    /// How many tools it had before and has no longer.
    pub tools_removed: usize,
    /// The lists that could not be read; the old ones stay.
    pub failed: Vec<FailedList>,
}

/// A list that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedList {
    /// Which list: the member of its result.
    pub list: &'static str,
    /// Why.
    pub message: Arc<str>,
}

impl Host {
    /// Asks a server for its lists again and waits for them. One that waits to be needed is
    /// started, which reads its lists.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let refreshed = host.refresh("clock").await?;
    /// assert_eq!((refreshed.server.tools, refreshed.tools_added), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such server, or it does not serve and cannot be started.
    pub async fn refresh(&self, name: &str) -> Result<Refreshed, CallError> {
        let server = self.server(name)?;
        let before = self.tool_names(name);
        if server.open_link().is_some() {
            server.want_lists();
        } else {
            let wait = server.spec().start_timeout;
            server.listed(self.path.clock.now().plus(wait)).await?;
        }
        self.refreshed(&server, &before).await
    }

    /// Asks every server that serves for its lists again and waits for them.
    pub async fn refresh_all(&self) -> Vec<Refreshed> {
        let mut serving: Vec<Supervisor> = self.path.servers.load().values().cloned().collect();
        serving.retain(|server| server.open_link().is_some());
        serving.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        let asked: Vec<_> = serving
            .into_iter()
            .map(|server| {
                let before = self.tool_names(&server.spec().name);
                server.want_lists();
                (server, before)
            })
            .collect();
        let mut all = Vec::with_capacity(asked.len());
        for (server, before) in asked {
            // A server that was removed in the meantime has nothing to tell.
            all.extend(self.refreshed(&server, &before).await);
        }
        all
    }

    async fn refreshed(
        &self,
        server: &Supervisor,
        before: &HashSet<Arc<str>>,
    ) -> Result<Refreshed, CallError> {
        let name = &server.spec().name;
        let deadline = self.path.clock.now().plus(REFRESH_TIMEOUT);
        let failed = server.lists_read(deadline).await;
        let after = self.tool_names(name);
        let failed = failed.into_iter().map(|(kind, message)| FailedList {
            list: kind.member(),
            message,
        });
        Ok(Refreshed {
            server: self.status_of(name)?,
            tools_added: after.difference(before).count(),
            tools_removed: before.difference(&after).count(),
            failed: failed.collect(),
        })
    }

    fn tool_names(&self, server: &str) -> HashSet<Arc<str>> {
        let catalog = self.catalog();
        let offer = catalog.offer(server).into_iter();
        let tools = offer.flat_map(|offer| offer.shelf(ListKind::Tools));
        tools.map(|item| Arc::clone(&item.route.name)).collect()
    }
}
