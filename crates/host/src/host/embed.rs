//! The short ways in, for programs that embed the host.

use std::sync::Arc;

use bowline_core::call::{Kind, Principal, Route, Scope};
use bowline_core::error::CallError;
use bowline_core::name::slug;
use bowline_core::policy::Thing;
use bowline_wire::object;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Discovered, FRESH_LIST_WAIT, Host};
use crate::callpath::Servers;
use crate::catalog::{Age, Item};
use crate::decide::Delivered;
use crate::output::ToolOutput;
use crate::supervisor::Supervisor;
use crate::tools::{Arguments, ExecuteContext, ExecuteError, ToolSchema, refused, tool_call};

/// One line of what all servers offer: a tool, or why there are none of a server.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum DiscoveredEntry {
    /// A tool.
    Tool {
        /// Its server.
        server: Arc<str>,
        /// The server's own name of it.
        tool: Arc<str>,
        /// What it takes, as the server wrote it.
        schema: Option<Box<RawValue>>,
        /// What else is said of it, with our own marks.
        #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
        meta: Option<Box<RawValue>>,
        /// Whether it is known from before, because the server is still being started.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        stale: bool,
    },
    /// A server whose tools are not to be had.
    Failed {
        /// The server.
        server: Arc<str>,
        /// Why.
        error: DiscoveredError,
    },
}

/// Why the tools of a server are not to be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiscoveredError {
    /// The class of the failure.
    pub class: &'static str,
    /// What happened.
    pub message: Arc<str>,
}

impl Discovered {
    /// Returns a line for each tool, or one that says why there is none.
    #[must_use]
    pub fn into_entries(self) -> Vec<DiscoveredEntry> {
        let server = self.server;
        match self.tools {
            Ok(tools) => tools.iter().map(DiscoveredEntry::of).collect(),
            Err(why) => vec![DiscoveredEntry::Failed {
                server,
                error: DiscoveredError {
                    class: why.class,
                    message: why.message,
                },
            }],
        }
    }
}

impl DiscoveredEntry {
    fn of(item: &Item) -> Self {
        let definition = &item.definition;
        let member = |key| {
            let at = object::field(definition, key)?;
            let text = String::from_utf8(at.of(definition).to_vec()).ok()?;
            RawValue::from_string(text).ok()
        };
        Self::Tool {
            server: Arc::clone(&item.route.server),
            tool: Arc::clone(&item.route.name),
            schema: member("inputSchema"),
            meta: member("_meta"),
            stale: item.age == Age::LastKnown,
        }
    }
}

impl Host {
    /// Returns the tools of one server that `principal` may use, under the server's own names. A
    /// server that has never told what it offers is started and waited for. One that is being
    /// started anew, after [`reload`](Self::reload) or [`apply`](Self::apply), is waited for, but
    /// not longer than [`FRESH_LIST_WAIT`]; where that is too short its tools of before are
    /// [stale](ToolSchema::is_stale).
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let owner = Principal::new("me", Role::Owner);
    /// let tools = host.tools(&owner, "clock").await?;
    /// assert_eq!(&**tools[0].name(), "now");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no such server, or it cannot be started.
    pub async fn tools(
        &self,
        principal: &Principal,
        server: &str,
    ) -> Result<Vec<ToolSchema>, CallError> {
        let supervisor = self.server(server)?;
        let server = &supervisor.spec().name;
        let now = self.clock().now();
        self.list_fresh(&supervisor, now.plus(FRESH_LIST_WAIT))
            .await;
        if self.catalog().offer(server).is_none() {
            let spec = supervisor.spec();
            let wait = spec.install_timeout.unwrap_or_default();
            let wait = wait.max(spec.start_timeout);
            supervisor.listed(self.clock().now().plus(wait)).await?;
        }
        let catalog = self.catalog();
        let items = catalog.offer(server).into_iter();
        let items = items.flat_map(|offer| &offer.tools);
        let scope = Scope::Server(Arc::clone(server));
        let seen = items.filter(|item| self.may_see(principal, &scope, &item.route));
        Ok(seen.map(ToolSchema::own).collect())
    }

    /// Calls a tool by the names of its server and its own, and reads what comes back.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Principal, Role, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
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
    /// [`ExecuteError::Call`] says why there is no output, be it policy, the budget or the server;
    /// an error that the server itself answered with is [`CallError::Refused`]. A tool that ran
    /// and failed is an output that says so.
    pub async fn call_tool(
        &self,
        principal: &Principal,
        server: &str,
        tool: &str,
        arguments: impl Into<Arguments> + Send,
    ) -> Result<ToolOutput, ExecuteError> {
        let principal = Arc::new(principal.clone());
        let (arguments, context) = (arguments.into(), ExecuteContext::default());
        let server: Arc<str> = slug(server).into();
        let scope = Scope::Server(Arc::clone(&server));
        let call = tool_call(self, (&principal, scope), tool, (&arguments, &context))?;
        let reply = self.call(call).await?;
        ToolOutput::of_reply(&reply).map_err(|error| refused(&server, error).into())
    }

    /// Calls a tool of this very server, and of no other that has its name by now.
    pub(crate) async fn call_tool_at(
        &self,
        principal: &Arc<Principal>,
        (server, tool): (&Supervisor, &str),
        sent: (&Arguments, &ExecuteContext),
    ) -> Result<ToolOutput, ExecuteError> {
        let name = &server.spec().name;
        let scope = Scope::Server(Arc::clone(name));
        let call = tool_call(self, (principal, scope), tool, sent)?;
        let reply = self.path.call_at(&call, server).await?;
        ToolOutput::of_reply(&reply).map_err(|error| refused(name, error).into())
    }

    /// Returns the tools of all servers that a principal sees, as far as they are known.
    pub(crate) fn tools_seen(&self, principal: &Principal) -> Vec<Item> {
        let catalog = self.catalog();
        let items = catalog.offers().flat_map(|offer| &offer.tools);
        let seen = items.filter(|item| self.sees_route(principal, &item.route));
        seen.cloned().collect()
    }

    /// Whether a principal sees a tool among those of all servers.
    pub(crate) fn sees_route(&self, principal: &Principal, route: &Route) -> bool {
        self.may_see(principal, &Scope::All, route)
    }

    /// Returns the servers in care of this moment.
    pub(crate) fn in_care(&self) -> Arc<Servers> {
        self.path.servers.load_full()
    }

    /// The same decision as for a call.
    fn may_see(&self, principal: &Principal, scope: &Scope, route: &Route) -> bool {
        let thing = Thing {
            kind: Kind::Tool,
            server: &route.server,
            name: &route.name,
            arguments: None,
        };
        self.path.decider.allows(principal, scope, thing)
    }

    /// Whether `principal` may be told what became of a queued call.
    pub(crate) fn may_be_told(
        &self,
        principal: &Principal,
        scope: &Scope,
        about: (Thing<'_>, Delivered),
    ) -> bool {
        self.path.decider.tells(principal, scope, about)
    }
}
