//! Lists the tools of every server concurrently; a failed server reports its error in place.

use std::sync::Arc;
use std::time::Duration;

use bowline_api::tools::DiscoveryError;
use bowline_core::call::{EndpointScope, FeatureKind, Principal};
use bowline_core::error::CallError;
use bowline_core::policy::PolicyTarget;
use bowline_core::time::MonotonicTime;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::Host;
use crate::catalog::{CatalogItem, ServerCatalog};
use crate::supervisor::{ServerState, Supervisor};

/// Default maximum wait for starting servers.
pub const DISCOVER_MAX: Duration = Duration::from_secs(15);

/// Maximum wait for a restarting server with known tools.
pub const FRESH_LIST_WAIT: Duration = Duration::from_secs(5);

/// A server and its tools.
#[derive(Clone, Debug)]
pub struct ServerDiscovery {
    /// The server.
    pub server: Arc<str>,
    /// The visible tools, or the error.
    pub tools: Result<Vec<CatalogItem>, DiscoveryError>,
}

impl Host {
    /// Lists the tools of every server concurrently, within `wait`, sorted by name. A lazy server
    /// starts only if its tools are unknown. A restarting server is awaited for at most
    /// [`FRESH_LIST_WAIT`]; after that, its previous tools are marked as last known.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with("now", "The time.", &json!({}), |_, _| async {
    ///     Ok(ToolOutput::from_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let owner = Principal::new("me", Role::Owner);
    /// let found = host.discover_tools(&owner, std::time::Duration::from_secs(1)).await;
    /// let lines: Vec<_> = found.into_iter().flat_map(|one| one.into_entries()).collect();
    /// let line = serde_json::to_value(&lines[0])?;
    /// assert_eq!((&line["server"], &line["tool"]), (&json!("clock"), &json!("now")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn discover_tools(
        &self,
        principal: &Principal,
        wait: Duration,
    ) -> Vec<ServerDiscovery> {
        let deadline = self.clock().now().plus(wait);
        // Dropped with this future: an abandoned discovery stops its requests.
        let mut fetches = JoinSet::new();
        for name in self.servers() {
            // A principal learns nothing about unreachable servers, and starts none.
            if !self
                .call_path
                .authorizer
                .can_reach(principal, &EndpointScope::All, &name)
            {
                continue;
            }
            let Ok(server) = self.server(&name) else {
                continue;
            };
            let host = self.clone();
            fetches.spawn(async move { (host.fetch_catalog(&server, deadline).await, name) });
        }
        let mut all = Vec::new();
        while let Some(joined) = fetches.join_next().await {
            let Ok((offer, server)) = joined else {
                continue;
            };
            let tools = match offer {
                Ok(offer) => match self.visible_tools_of(principal, &offer) {
                    // The server has tools, but none for this principal.
                    tools if tools.is_empty() && !offer.tools.is_empty() => continue,
                    tools => Ok(tools),
                },
                Err(error) => Err(error),
            };
            all.push(ServerDiscovery { server, tools });
        }
        all.sort_by(|a, b| a.server.cmp(&b.server));
        all
    }

    async fn fetch_catalog(
        &self,
        server: &Supervisor,
        deadline: MonotonicTime,
    ) -> Result<Arc<ServerCatalog>, DiscoveryError> {
        let name = &server.spec().name;
        self.wait_fresh_lists(server, deadline).await;
        if let Some(error) = server.blocking_error() {
            return Err(to_discovery_error(server, &error));
        }
        if let Some(offer) = self.catalog().server(name) {
            return Ok(Arc::clone(offer));
        }
        let listed = server.wait_listed(deadline).await;
        listed.map_err(|error| to_discovery_error(server, &error))?;
        let offer = self.catalog().server(name).map(Arc::clone);
        // Otherwise the server went away meanwhile.
        offer.ok_or_else(|| to_discovery_error(server, &to_stopped_error(name)))
    }

    /// Waits until a restarting server has listed its tools or failed: until then the catalog has
    /// its previous tools.
    pub(super) async fn wait_fresh_lists(&self, server: &Supervisor, deadline: MonotonicTime) {
        let is_known = self.catalog().server(&server.spec().name).is_some();
        if !is_known || server.subscribe_state().borrow().is_settled() {
            return;
        }
        let deadline = deadline.min(self.clock().now().plus(FRESH_LIST_WAIT));
        let mut state = server.subscribe_state();
        let settled = state.wait_for(ServerState::is_settled);
        // After a timeout, the previous entries are marked as last known.
        let _ = timeout_at(self.clock().instant(deadline), settled).await;
    }

    /// Filters the tools by the same decision as for calls.
    fn visible_tools_of(&self, principal: &Principal, offer: &ServerCatalog) -> Vec<CatalogItem> {
        let may = |item: &&CatalogItem| {
            let thing = PolicyTarget {
                kind: FeatureKind::Tool,
                server: &offer.server,
                name: &item.route.name,
                arguments: None,
            };
            self.call_path
                .authorizer
                .allows(principal, &EndpointScope::All, thing)
        };
        offer.tools.items.iter().filter(may).cloned().collect()
    }
}

fn to_stopped_error(server: &Arc<str>) -> CallError {
    CallError::Stopped {
        server: Arc::clone(server),
    }
}

/// Reports a refusal after an earlier failure as that failure.
fn to_discovery_error(server: &Supervisor, error: &CallError) -> DiscoveryError {
    let state = server.subscribe_state().borrow().clone();
    let failed = matches!(
        state,
        ServerState::Backoff { .. } | ServerState::Ejected { .. }
    );
    match server.last_error().filter(|_| failed) {
        Some(last) => DiscoveryError {
            class: last.class,
            message: last.message,
        },
        None => DiscoveryError {
            class: error.failure_class().as_str().into(),
            message: server
                .spec()
                .secrets
                .redact_shared(&error.to_string().into()),
        },
    }
}
