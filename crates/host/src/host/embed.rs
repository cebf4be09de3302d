//! Convenience methods for embedding programs.

use std::sync::Arc;

use bowline_api::tools::DiscoveryEntry;
use bowline_core::call::{EndpointScope, FeatureKind, Principal, Route};
use bowline_core::error::CallError;
use bowline_core::name::to_slug;
use bowline_core::policy::PolicyTarget;
use bowline_tools::ToolOutput;
use bowline_wire::object;
use serde_json::value::RawValue;

use super::{FRESH_LIST_WAIT, Host, ServerDiscovery};
use crate::authorizer::DeliveryStatus;
use crate::callpath::ServerMap;
use crate::catalog::{CatalogItem, Staleness};
use crate::supervisor::Supervisor;
use crate::tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolSchema, build_tool_call, own_schema,
    to_refused_error,
};

impl ServerDiscovery {
    /// Returns an entry for each tool, or a single error entry.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveryEntry> {
        let server = self.server;
        match self.tools {
            Ok(tools) => tools.iter().map(discovery_entry).collect(),
            Err(error) => vec![DiscoveryEntry::Failed { server, error }],
        }
    }
}

fn discovery_entry(item: &CatalogItem) -> DiscoveryEntry {
    let definition = &item.definition;
    let member = |key| {
        let at = object::field(definition, key)?;
        let text = String::from_utf8(at.slice(definition).to_vec()).ok()?;
        RawValue::from_string(text).ok()
    };
    DiscoveryEntry::Tool {
        server: Arc::clone(&item.route.server),
        tool: Arc::clone(&item.route.name),
        schema: member("inputSchema"),
        meta: member("_meta"),
        stale: item.staleness == Staleness::LastKnown,
    }
}

impl Host {
    /// Lists the tools of a server usable by `principal`, under the server's own names. A server
    /// never listed so far is started and awaited. A server restarting after
    /// [`reload_server`](Self::reload_server) or [`apply_config`](Self::apply_config) is awaited
    /// for at most [`FRESH_LIST_WAIT`]; after that, its previous tools are
    /// [stale](ToolSchema::is_stale).
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
    /// let tools = host.list_tools(&owner, "clock").await?;
    /// assert_eq!(&**tools[0].name(), "now");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Unknown server, or the server cannot be started.
    pub async fn list_tools(
        &self,
        principal: &Principal,
        server: &str,
    ) -> Result<Vec<ToolSchema>, CallError> {
        let supervisor = self.server(server)?;
        let server = &supervisor.spec().name;
        let now = self.clock().now();
        self.wait_fresh_lists(&supervisor, now.plus(FRESH_LIST_WAIT))
            .await;
        if self.catalog().server(server).is_none() {
            let spec = supervisor.spec();
            let wait = spec.install_timeout.unwrap_or_default();
            let wait = wait.max(spec.start_timeout);
            supervisor
                .wait_listed(self.clock().now().plus(wait))
                .await?;
        }
        let catalog = self.catalog();
        let items = catalog.server(server).into_iter();
        let items = items.flat_map(|offer| &offer.tools);
        let scope = EndpointScope::Server(Arc::clone(server));
        let visible = items.filter(|item| self.can_see(principal, &scope, &item.route));
        Ok(visible.map(own_schema).collect())
    }

    /// Calls a tool by server name and tool name.
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
    /// let output = host.call_tool(&owner, "clock", "now", json!({})).await?;
    /// assert_eq!(output.text(), "noon");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ExecuteError::Call`] for failures such as policy, budget or server; an error response of
    /// the server is [`CallError::Refused`]. A tool that ran and failed gives an output with
    /// `is_error`.
    pub async fn call_tool(
        &self,
        principal: &Principal,
        server: &str,
        tool: &str,
        arguments: impl Into<ToolArguments> + Send,
    ) -> Result<ToolOutput, ExecuteError> {
        let principal = Arc::new(principal.clone());
        let (arguments, context) = (arguments.into(), ExecuteContext::default());
        let server: Arc<str> = to_slug(server).into();
        let scope = EndpointScope::Server(Arc::clone(&server));
        let call = build_tool_call(self, &principal, scope, tool, &arguments, &context)?;
        let reply = self.call(call).await?;
        ToolOutput::from_reply(&reply)
            .map_err(|error| to_refused_error(self, &server, error).into())
    }

    /// Calls a tool of this very server, never of a successor of the same name.
    pub(crate) async fn call_tool_on(
        &self,
        principal: &Arc<Principal>,
        server: &Supervisor,
        tool: &str,
        arguments: &ToolArguments,
        context: &ExecuteContext,
    ) -> Result<ToolOutput, ExecuteError> {
        let name = &server.spec().name;
        let scope = EndpointScope::Server(Arc::clone(name));
        let call = build_tool_call(self, principal, scope, tool, arguments, context)?;
        let reply = self.call_path.call_on_server(&call, server).await?;
        ToolOutput::from_reply(&reply).map_err(|error| to_refused_error(self, name, error).into())
    }

    /// Returns the known tools of all servers visible to a principal.
    pub(crate) fn visible_tools(&self, principal: &Principal) -> Vec<CatalogItem> {
        let catalog = self.catalog();
        let items = catalog.servers().flat_map(|offer| &offer.tools);
        let visible = items.filter(|item| self.can_see_route(principal, &item.route));
        visible.cloned().collect()
    }

    /// True if a principal may see a tool among all servers.
    pub(crate) fn can_see_route(&self, principal: &Principal, route: &Route) -> bool {
        self.can_see(principal, &EndpointScope::All, route)
    }

    /// Returns the current servers.
    pub(crate) fn server_map(&self) -> Arc<ServerMap> {
        self.call_path.servers.load_full()
    }

    /// Applies the same decision as for calls.
    fn can_see(&self, principal: &Principal, scope: &EndpointScope, route: &Route) -> bool {
        let thing = PolicyTarget {
            kind: FeatureKind::Tool,
            server: &route.server,
            name: &route.name,
            arguments: None,
        };
        self.call_path.authorizer.allows(principal, scope, thing)
    }

    /// True if `principal` may learn the outcome of a queued call.
    pub(crate) fn can_learn_outcome(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        thing: PolicyTarget<'_>,
        delivered: DeliveryStatus,
    ) -> bool {
        self.call_path
            .authorizer
            .can_learn_outcome(principal, scope, thing, delivered)
    }
}
