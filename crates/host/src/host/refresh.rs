//! List refreshes requested by an operator or a program.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_api::reload::{FailedList, RefreshReport};
use bowline_core::error::CallError;

use super::Host;
use crate::catalog::ListKind;
use crate::supervisor::Supervisor;

/// Timeout of a refresh.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(30);

impl Host {
    /// Refreshes the lists of a server and waits for them. An idle server is started, which reads
    /// its lists.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with("now", "The time.", &json!({}), |_, _| async {
    ///     Ok(ToolOutput::from_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let refreshed = host.refresh_server("clock").await?;
    /// assert_eq!((refreshed.server.tools, refreshed.tools_added), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Unknown server, or the server cannot be started.
    pub async fn refresh_server(&self, name: &str) -> Result<RefreshReport, CallError> {
        let server = self.server(name)?;
        let before = self.tool_names(name);
        if server.open_link().is_some() {
            server.request_all_lists();
        } else {
            let wait = server.spec().start_timeout;
            server
                .wait_listed(self.call_path.clock.now().plus(wait))
                .await?;
        }
        self.wait_refreshed(&server, &before).await
    }

    /// Refreshes the lists of every ready server and waits for them.
    pub async fn refresh_all(&self) -> Vec<RefreshReport> {
        let mut serving: Vec<Supervisor> =
            self.call_path.servers.load().values().cloned().collect();
        serving.retain(|server| server.open_link().is_some());
        serving.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        let requested: Vec<_> = serving
            .into_iter()
            .map(|server| {
                let before = self.tool_names(&server.spec().name);
                server.request_all_lists();
                (server, before)
            })
            .collect();
        let mut all = Vec::with_capacity(requested.len());
        for (server, before) in requested {
            // A server removed meanwhile is skipped.
            all.extend(self.wait_refreshed(&server, &before).await);
        }
        all
    }

    async fn wait_refreshed(
        &self,
        server: &Supervisor,
        before: &HashSet<Arc<str>>,
    ) -> Result<RefreshReport, CallError> {
        let name = &server.spec().name;
        let deadline = self.call_path.clock.now().plus(REFRESH_TIMEOUT);
        let failed = server.wait_lists_read(deadline).await;
        let after = self.tool_names(name);
        let failed = failed.into_iter().map(|(kind, message)| FailedList {
            list: kind.member().into(),
            message,
        });
        Ok(RefreshReport {
            server: self.server_status(name)?,
            tools_added: after.difference(before).count(),
            tools_removed: before.difference(&after).count(),
            failed: failed.collect(),
        })
    }

    fn tool_names(&self, server: &str) -> HashSet<Arc<str>> {
        let catalog = self.catalog();
        let offer = catalog.server(server).into_iter();
        let tools = offer.flat_map(|offer| offer.list(ListKind::Tools));
        tools.map(|item| Arc::clone(&item.route.name)).collect()
    }
}
