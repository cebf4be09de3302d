//! Resolves tool names as written by agents: to a server of the host, or to the program's fallback.

mod disabled_tools;
mod tool_names;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::BoxFuture;
use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_tools::ToolOutput;

use crate::host::Host;
use crate::spawn_options::{SpawnError, SpawnOptions};
use crate::spec::ServerSpec;
use crate::supervisor::Supervisor;
use crate::tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolSchema, visible_schema,
};

use self::disabled_tools::DisabledTools;
use self::tool_names::NameMatch;

/// Runs tools of all servers of a host on behalf of a principal, by any of these names:
///
/// - `server__tool`, the listed name;
/// - `mcp_server_tool`;
/// - `tool`, if exactly one server offers it. A name in one of the two forms above is never taken
///   for the plain name of a different server's tool, so that no server can take over the names of
///   a removed server.
///
/// A name without a server goes to the fallback, if any. A server's own "unknown tool" response
/// never falls back.
///
/// ```
/// use std::sync::Arc;
/// use bowline_core::call::{Principal, Role};
/// use bowline_host::tools::{ExecuteContext, ToolExecutor as _, Toolbox};
/// use bowline_host::{Host, Router, Server, SpawnOptions, ToolOutput};
/// use serde_json::json;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let says = |text: &'static str| move |_, _| async move { Ok(ToolOutput::from_text(text)) };
/// let any = json!({"type": "object"});
/// let clock = Toolbox::default().with("now", "Tells the time.", &any, says("noon"));
/// let own = Toolbox::default().with("ask", "Asks a person.", &any, says("yes"));
///
/// let router = Router::new(Host::builder().build()?, Principal::new("me", Role::Owner))
///     .with_fallback(Arc::new(own));
/// let names = router
///     .add_server(Server::in_process("clock", clock), SpawnOptions::default())
///     .await?;
/// assert_eq!(names, ["clock__now".into()]);
/// let context = ExecuteContext::default();
/// for (name, text) in [("clock__now", "noon"), ("mcp_clock_now", "noon"), ("ask", "yes")] {
///     let output = router.execute(name, json!({}).into(), &context).await?;
///     assert_eq!(output.text(), text);
/// }
/// router.remove_all_servers().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router {
    shared: Arc<RouterShared>,
    fallback: Option<Arc<dyn ToolExecutor>>,
}

/// State shared by all views of a router.
#[derive(Debug)]
struct RouterShared {
    host: Host,
    principal: Arc<Principal>,
    /// Disabled servers and tools.
    disabled: ArcSwap<DisabledTools>,
}

/// A resolved name, bound to a tool of this very server.
#[derive(Clone, Debug)]
pub struct ResolvedTool {
    shared: Arc<RouterShared>,
    server: Supervisor,
    tool: Arc<str>,
}

impl Router {
    /// Creates a router over the servers of `host`, acting as `principal`.
    #[must_use]
    pub fn new(host: Host, principal: impl Into<Arc<Principal>>) -> Self {
        Self {
            shared: Arc::new(RouterShared {
                host,
                principal: principal.into(),
                disabled: ArcSwap::default(),
            }),
            fallback: None,
        }
    }

    /// Returns a view with shared servers and settings, in which names without a server go to
    /// `fallback`.
    #[must_use]
    pub fn with_fallback(&self, fallback: Arc<dyn ToolExecutor>) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            fallback: Some(fallback),
        }
    }

    /// Returns the host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.shared.host
    }

    /// Adds a server like [`Host::spawn`], and returns the names of its tools.
    ///
    /// # Errors
    /// See [`Host::spawn`].
    pub async fn add_server(
        &self,
        spec: ServerSpec,
        options: SpawnOptions,
    ) -> Result<Vec<Arc<str>>, SpawnError> {
        let server = self.shared.host.spawn(spec, options).await?;
        let items = self.shared.visible_tools().into_iter();
        let own = items.filter(|item| item.route.server == server);
        Ok(own.map(|item| item.visible).collect())
    }

    /// Removes a server.
    ///
    /// # Errors
    /// Unknown server.
    pub async fn remove_server(&self, server: &str) -> Result<(), CallError> {
        self.shared.host.remove_server(server).await
    }

    /// Disables all tools of a server, including a later server of this name; its link stays.
    pub fn disable_server(&self, server: &str) {
        self.shared
            .update_disabled(|off| off.disable_server(server));
    }

    /// Enables the tools of a server, except individually disabled tools.
    pub fn enable_server(&self, server: &str) {
        self.shared.update_disabled(|off| off.enable_server(server));
    }

    /// Disables a tool, by server name and the server's own tool name.
    pub fn disable_tool(&self, server: &str, tool: &str) {
        self.shared
            .update_disabled(|off| off.disable_tool(server, tool));
    }

    /// Enables a tool.
    pub fn enable_tool(&self, server: &str, tool: &str) {
        self.shared
            .update_disabled(|off| off.enable_tool(server, tool));
    }

    /// Returns the known tools of all servers usable by the principal, as `server__tool`, without
    /// any request.
    #[must_use]
    pub fn schemas(&self) -> Vec<ToolSchema> {
        self.shared
            .visible_tools()
            .iter()
            .map(visible_schema)
            .collect()
    }

    /// True if a name resolves to a known, usable tool of a server; ignores the fallback.
    #[must_use]
    pub fn has_tool(&self, name: &str) -> bool {
        matches!(
            self.shared.match_name(name),
            NameMatch::Tool {
                is_visible: true,
                ..
            }
        )
    }

    /// Resolves a name, waiting for a server not listed yet.
    ///
    /// # Errors
    /// [`ExecuteError::UnknownTool`] for an unknown name, [`ExecuteError::AmbiguousTool`] if
    /// several servers have such a tool, or the error of starting the server.
    pub async fn resolve(&self, name: &str) -> Result<ResolvedTool, ExecuteError> {
        self.resolve_with_timeout(name, None).await
    }

    async fn resolve_with_timeout(
        &self,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<ResolvedTool, ExecuteError> {
        let mut matched = self.shared.match_name(name);
        if let NameMatch::Unlisted(server) = matched {
            let wait = server.spec().call_timeout;
            let wait = timeout.map_or(wait, |timeout| timeout.min(wait));
            let now = self.shared.host.clock().now();
            server.wait_listed(now.plus(wait)).await?;
            matched = self.shared.match_name(name);
        }
        match matched {
            NameMatch::Tool { server, tool, .. } => Ok(ResolvedTool {
                shared: Arc::clone(&self.shared),
                server,
                tool,
            }),
            NameMatch::Ambiguous(candidates) => Err(ExecuteError::AmbiguousTool {
                tool: name.into(),
                candidates,
            }),
            NameMatch::Unlisted(_) | NameMatch::Unknown => Err(ExecuteError::unknown_tool(name)),
        }
    }

    /// Removes every server of the host and waits for their end. The host continues.
    pub async fn remove_all_servers(&self) {
        self.shared.host.remove_all_servers().await;
    }
}

impl ToolExecutor for Router {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: ToolArguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            match (
                self.resolve_with_timeout(name, context.timeout).await,
                &self.fallback,
            ) {
                (Ok(resolved), _) => resolved.call(arguments, context).await,
                (Err(ExecuteError::UnknownTool { .. }), Some(fallback)) => {
                    fallback.execute(name, arguments, context).await
                }
                (Err(error), _) => Err(error),
            }
        })
    }

    /// Returns the tools of all servers, and the fallback's tools with unused names.
    fn list_tools(&self) -> Vec<ToolSchema> {
        let mut tools = self.schemas();
        if let Some(fallback) = &self.fallback {
            let names: HashSet<_> = tools.iter().map(|tool| Arc::clone(tool.name())).collect();
            let more = fallback.list_tools().into_iter();
            tools.extend(more.filter(|tool| !names.contains(tool.name())));
        }
        tools
    }
}

impl ResolvedTool {
    /// Returns the server name.
    #[must_use]
    pub fn server(&self) -> &Arc<str> {
        &self.server.spec().name
    }

    /// Returns the server's own tool name.
    #[must_use]
    pub const fn tool(&self) -> &Arc<str> {
        &self.tool
    }

    /// Calls the tool at the resolved server. If that server was removed since, the call is
    /// refused, even if a successor has its name.
    ///
    /// # Errors
    /// See [`Host::call_tool`].
    pub async fn call(
        &self,
        arguments: ToolArguments,
        context: &ExecuteContext,
    ) -> Result<ToolOutput, ExecuteError> {
        let RouterShared {
            host, principal, ..
        } = self.shared.as_ref();
        host.call_tool_on(principal, &self.server, &self.tool, &arguments, context)
            .await
    }
}
