//! Names of tools as agents write them, and what each leads to: a server of the host, or whatever
//! the program has besides.

mod names;
mod switches;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_link::BoxFuture;

use crate::host::Host;
use crate::output::ToolOutput;
use crate::spawn::{SpawnError, SpawnOptions};
use crate::spec::ServerSpec;
use crate::supervisor::Supervisor;
use crate::tools::{Arguments, ExecuteContext, ExecuteError, ToolExecutor, ToolSchema};

use self::names::Meant;
use self::switches::Switches;

/// Runs tools of all servers of a host on behalf of one principal, by any of their names:
///
/// - `server__tool`, the name under which a tool is listed;
/// - `mcp_server_tool`;
/// - `tool`, where exactly one server offers it. A name that has one of the two forms above is
///   never taken for the plain name of another server's tool, so that none can be put in the
///   place of a server that is gone.
///
/// A name that leads to no server goes to the fallback, where there is one. Nothing that a server
/// answers does: its own "unknown tool" is its answer.
///
/// ```
/// use std::sync::Arc;
/// use bowline_core::call::{Principal, Role};
/// use bowline_host::tools::{ExecuteContext, ToolExecutor as _, Toolbox};
/// use bowline_host::{Host, Router, Server, SpawnOptions, ToolOutput};
/// use serde_json::json;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let says = |text: &'static str| move |_, _| async move { Ok(ToolOutput::of_text(text)) };
/// let any = json!({"type": "object"});
/// let clock = Toolbox::default().with(("now", "Tells the time."), &any, says("noon"));
/// let own = Toolbox::default().with(("ask", "Asks a person."), &any, says("yes"));
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
/// router.shutdown_all().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router {
    shared: Arc<Shared>,
    fallback: Option<Arc<dyn ToolExecutor>>,
}

/// What all views of a router share.
#[derive(Debug)]
struct Shared {
    host: Host,
    principal: Arc<Principal>,
    /// What is switched off.
    switches: ArcSwap<Switches>,
}

/// A name that was looked up: one tool of one server in care, which it stays.
#[derive(Clone, Debug)]
pub struct Resolved {
    shared: Arc<Shared>,
    server: Supervisor,
    tool: Arc<str>,
}

impl Router {
    /// Returns a router of the servers of `host`, which acts as `principal`.
    #[must_use]
    pub fn new(host: Host, principal: impl Into<Arc<Principal>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                host,
                principal: principal.into(),
                switches: ArcSwap::default(),
            }),
            fallback: None,
        }
    }

    /// Returns a view of the same router: servers and switches are shared, and names that lead to
    /// no server go to `fallback` in this view only.
    #[must_use]
    pub fn with_fallback(&self, fallback: Arc<dyn ToolExecutor>) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            fallback: Some(fallback),
        }
    }

    /// Returns the host behind it.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.shared.host
    }

    /// Takes a server into care, as [`Host::spawn`] does, and returns the names of its tools.
    ///
    /// # Errors
    /// Those of [`Host::spawn`].
    pub async fn add_server(
        &self,
        spec: ServerSpec,
        options: SpawnOptions,
    ) -> Result<Vec<Arc<str>>, SpawnError> {
        let server = self.shared.host.spawn(spec, options).await?;
        let items = self.shared.seen().into_iter();
        let own = items.filter(|item| item.route.server == server);
        Ok(own.map(|item| item.visible).collect())
    }

    /// Takes a server out of care.
    ///
    /// # Errors
    /// There is no server of that name.
    pub async fn remove_server(&self, server: &str) -> Result<(), CallError> {
        self.shared.host.remove(server).await
    }

    /// Routes no tool of a server, be it one that comes later; its link stays as it is.
    pub fn disable_server(&self, server: &str) {
        self.shared.switch(|off| off.add_server(server));
    }

    /// Routes the tools of a server again, but for those that were switched off one by one.
    pub fn enable_server(&self, server: &str) {
        self.shared.switch(|off| off.remove_server(server));
    }

    /// Routes one tool no more, by its server and the server's own name of it.
    pub fn disable_tool(&self, server: &str, tool: &str) {
        self.shared.switch(|off| off.add_tool(server, tool));
    }

    /// Routes one tool again.
    pub fn enable_tool(&self, server: &str, tool: &str) {
        self.shared.switch(|off| off.remove_tool(server, tool));
    }

    /// Returns the tools of all servers that the principal may use, under the names
    /// `server__tool`, as far as they are known without asking anybody.
    #[must_use]
    pub fn schemas(&self) -> Vec<ToolSchema> {
        self.shared.seen().iter().map(ToolSchema::visible).collect()
    }

    /// Whether a name leads to a tool of a server that is known and may be used; the fallback does
    /// not count.
    #[must_use]
    pub fn handles(&self, name: &str) -> bool {
        matches!(self.shared.look_up(name), Meant::Tool { seen: true, .. })
    }

    /// Looks a name up, and waits for a server that has not told its tools yet.
    ///
    /// # Errors
    /// [`ExecuteError::UnknownTool`] where it leads nowhere, [`ExecuteError::AmbiguousTool`] where
    /// several servers have such a tool, or why its server cannot be started.
    pub async fn resolve(&self, name: &str) -> Result<Resolved, ExecuteError> {
        self.resolve_within(name, None).await
    }

    async fn resolve_within(
        &self,
        name: &str,
        timeout: Option<Duration>,
    ) -> Result<Resolved, ExecuteError> {
        let mut meant = self.shared.look_up(name);
        if let Meant::Unlisted(server) = meant {
            let wait = server.spec().call_timeout;
            let wait = timeout.map_or(wait, |timeout| timeout.min(wait));
            let now = self.shared.host.clock().now();
            server.listed(now.plus(wait)).await?;
            meant = self.shared.look_up(name);
        }
        match meant {
            Meant::Tool { server, tool, .. } => Ok(Resolved {
                shared: Arc::clone(&self.shared),
                server,
                tool,
            }),
            Meant::Several(candidates) => Err(ExecuteError::AmbiguousTool {
                tool: name.into(),
                candidates,
            }),
            Meant::Unlisted(_) | Meant::Nothing => Err(ExecuteError::unknown(name)),
        }
    }

    /// Takes every server of the host out of care and waits for their end. The host goes on.
    pub async fn shutdown_all(&self) {
        self.shared.host.remove_all().await;
    }
}

impl ToolExecutor for Router {
    fn execute<'a>(
        &'a self,
        name: &'a str,
        arguments: Arguments,
        context: &'a ExecuteContext,
    ) -> BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
        Box::pin(async move {
            match (
                self.resolve_within(name, context.timeout).await,
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

    /// Returns the tools of all servers, and those of the fallback whose names are still free.
    fn tools(&self) -> Vec<ToolSchema> {
        let mut tools = self.schemas();
        if let Some(fallback) = &self.fallback {
            let names: HashSet<_> = tools.iter().map(|tool| Arc::clone(tool.name())).collect();
            let more = fallback.tools().into_iter();
            tools.extend(more.filter(|tool| !names.contains(tool.name())));
        }
        tools
    }
}

impl Resolved {
    /// Returns the name of the server.
    #[must_use]
    pub fn server(&self) -> &Arc<str> {
        &self.server.spec().name
    }

    /// Returns the server's own name of the tool.
    #[must_use]
    pub const fn tool(&self) -> &Arc<str> {
        &self.tool
    }

    /// Calls the tool at the server that was found. Where that one was taken out of care since,
    /// the call is refused, even if another has its name by now.
    ///
    /// # Errors
    /// See [`Host::call_tool`].
    pub async fn call(
        &self,
        arguments: Arguments,
        context: &ExecuteContext,
    ) -> Result<ToolOutput, ExecuteError> {
        let Shared {
            host, principal, ..
        } = self.shared.as_ref();
        let meant = (&self.server, self.tool.as_ref());
        host.call_tool_at(principal, meant, (&arguments, context))
            .await
    }
}
