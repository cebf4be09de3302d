//! Status of servers and their log lines.

use bowline_core::error::CallError;
use bowline_link::stderr::LogLine;
use tokio::sync::watch;

use super::Host;
use crate::catalog::Catalog;
use crate::supervisor::{ServerStatus, Supervisor};

impl Host {
    /// Returns the status of every server, by name.
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
    /// let clock = &host.status()[0];
    /// assert_eq!((&*clock.name, &*clock.state, clock.tools), ("clock", "ready", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> Vec<ServerStatus> {
        let catalog = self.catalog();
        let servers = self.call_path.servers.load();
        let mut list: Vec<_> = servers
            .values()
            .map(|server| self.status_from(server, &catalog))
            .collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    /// Returns the status of a server.
    pub fn server_status(&self, name: &str) -> Result<ServerStatus, CallError> {
        Ok(self.status_from(&self.server(name)?, &self.catalog()))
    }

    /// Returns log lines after `after`, oldest first, of a single server or of all.
    pub fn logs(
        &self,
        server: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LogLine>, CallError> {
        let chosen = match server {
            Some(name) => vec![self.server(name)?],
            None => self.call_path.servers.load().values().cloned().collect(),
        };
        let mut lines: Vec<_> = chosen
            .iter()
            .flat_map(|server| server.log().read_after(after, limit))
            .collect();
        lines.sort_by_key(|line| line.seq);
        lines.truncate(limit);
        Ok(lines)
    }

    /// Returns a receiver signalled by new log lines of any server.
    #[must_use]
    pub fn log_changes(&self) -> watch::Receiver<u64> {
        self.stamps.subscribe()
    }

    fn status_from(&self, server: &Supervisor, catalog: &Catalog) -> ServerStatus {
        let name = &server.spec().name;
        let offer = catalog.server(name).map(AsRef::as_ref);
        server.status(offer, self.call_path.cache.server_stats(name))
    }
}
