//! Builder of a host; unset options have defaults.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::lane::KeyScope;
use bowline_core::policy::Policy;
#[cfg(feature = "executor")]
use bowline_executor::{ExecutorRegistry, ExecutorRegistryOptions};
use bowline_journal::{Journal, MemoryJournal};
use bowline_link::{ClientInfo, StdioLimits};
use bowline_runtime::{Clock, SystemClock, TaskTracker};
use thiserror::Error;

use crate::access_guard::{AccessGuard, GuardDecision};
use crate::audit::{AuditSink, NullAuditSink};
#[cfg(feature = "executor")]
use crate::dial::ExecutorDial;
#[cfg(feature = "http")]
use crate::dial::HttpDial;
use crate::dial::{EraCache, MissingFeature, RealDial, TransportDial};
use crate::host::{Host, HostLimits, HostPorts};
use crate::manifest::{ManifestStore, NullManifestStore};
use crate::pins::{NullPinStore, PinStore};
use crate::ports::{NotificationSink, NullSink};
use crate::spec::{NameClash, ServerSpec};
use crate::supervisor::Dial;

/// Why a host could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// No Tokio runtime.
    #[error("a host is built inside a tokio runtime, and there is none here")]
    NoRuntime,
    /// TLS setup failed.
    #[error("cannot set up TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The transport of a server needs a feature that is not built in.
    #[error(transparent)]
    MissingFeature(#[from] MissingFeature),
    /// A server without a name.
    #[error("a server needs a name")]
    NoName,
    /// Two servers with the same name.
    #[error("two servers are named `{0}`")]
    TwoServers(Arc<str>),
    /// Two server names with the same slug.
    #[error(transparent)]
    NameClash(NameClash),
    /// A server refused by the guard.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// The guard's reason.
        reason: Arc<str>,
    },
}

/// Builder of a [`Host`].
///
/// No global state: hosts in the same process share no policy, guard, cache or breaker, and
/// building a host installs no logger and no signal handler. The default policy permits everything
/// to the owner and nothing to other principals.
#[derive(Debug)]
#[must_use]
pub struct HostBuilder {
    policy: Policy,
    guard: Option<Box<dyn AccessGuard>>,
    limits: HostLimits,
    clock: Option<Arc<dyn Clock>>,
    tasks: TaskTracker,
    dial: Option<Arc<dyn Dial>>,
    executors: Option<Arc<dyn TransportDial>>,
    notifications: Arc<dyn NotificationSink>,
    manifests: Arc<dyn ManifestStore>,
    pins: Arc<dyn PinStore>,
    journal: Arc<dyn Journal>,
    audit: Arc<dyn AuditSink>,
    keys: KeyScope,
    client: ClientInfo,
    servers: Vec<ServerSpec>,
}

impl Host {
    /// Creates a builder.
    ///
    /// ```
    /// use bowline_core::call::{Principal, Role};
    /// use bowline_core::policy::RoleAllowlist;
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let greet = Toolbox::default().with(
    ///     "greet",
    ///     "Greets.",
    ///     &json!({"type": "object"}),
    ///     |_, _| async { Ok(ToolOutput::from_text("hello")) },
    /// );
    /// let host = Host::builder()
    ///     .policy(&RoleAllowlist::unrestricted().with_role("guest", ["own.gr*"]))
    ///     .server(Server::in_process("own", greet))
    ///     .build()?;
    /// let guest = Principal::new("ann", Role::Named("guest".into()));
    /// let output = host.call_tool(&guest, "own", "greet", json!({})).await?;
    /// assert_eq!(output.text(), "hello");
    /// host.shutdown().await;
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> HostBuilder {
        HostBuilder {
            policy: Policy::default(),
            guard: None,
            limits: HostLimits::default(),
            clock: None,
            tasks: TaskTracker::default(),
            dial: None,
            executors: None,
            notifications: Arc::new(NullSink),
            manifests: Arc::new(NullManifestStore),
            pins: Arc::new(NullPinStore),
            journal: Arc::new(MemoryJournal::default()),
            audit: Arc::new(NullAuditSink),
            keys: KeyScope::default(),
            client: ClientInfo {
                name: "bowline".into(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            servers: Vec::new(),
        }
    }
}

impl HostBuilder {
    /// Sets the policy, or a list of roles.
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = policy.into();
        self
    }

    /// Sets a guard, which may deny in addition to the policy.
    pub fn guard(mut self, guard: impl AccessGuard + 'static) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }

    /// Sets the limits.
    pub const fn limits(mut self, limits: HostLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the clock; defaults to the system clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the task tracker, to wait for all tasks of the program together.
    pub fn tasks(mut self, tasks: TaskTracker) -> Self {
        self.tasks = tasks;
        self
    }

    /// Sets the connector; defaults to child processes, and HTTP with the feature `http`.
    /// In-process servers are not dialed.
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = Some(dial);
        self
    }

    /// Sets the executors used by servers; defaults to none.
    #[cfg(feature = "executor")]
    pub fn executors(mut self, executors: ExecutorRegistry) -> Self {
        self.executors = Some(Arc::new(ExecutorDial::new(executors)));
        self
    }

    /// Sets the receiver of server notifications outside calls.
    pub fn notifications(mut self, audience: Arc<dyn NotificationSink>) -> Self {
        self.notifications = audience;
        self
    }

    /// Sets the store of server lists across restarts; defaults to none.
    pub fn manifests(mut self, manifests: Arc<dyn ManifestStore>) -> Self {
        self.manifests = manifests;
        self
    }

    /// Sets the store of approved definitions across restarts; defaults to this process only.
    pub fn pins(mut self, pins: Arc<dyn PinStore>) -> Self {
        self.pins = pins;
        self
    }

    /// Sets the audit sink; defaults to none.
    pub fn audit(mut self, audit: Arc<dyn AuditSink>) -> Self {
        self.audit = audit;
        self
    }

    /// Sets the journal of queued writes; defaults to memory, for this process only.
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = journal;
        self
    }

    /// Sets the secret that binds idempotency keys to principals. Servers see the same keys after a
    /// restart only with the same secret; the default has none, and then two hosts produce equal
    /// keys for equal principal names.
    pub fn key_scope(mut self, keys: KeyScope) -> Self {
        self.keys = keys;
        self
    }

    /// Sets the client name and version sent to servers.
    pub fn client(mut self, name: &str, version: &str) -> Self {
        self.client = ClientInfo {
            name: name.into(),
            version: version.into(),
        };
        self
    }

    /// Adds a server. Unless lazy, it starts in the background; [`Host::spawn`] waits for it. Its
    /// name is handled as in a config file: an invalid name becomes its slug, so `My_Server`
    /// becomes `my-server`.
    pub fn server(mut self, spec: ServerSpec) -> Self {
        self.servers.push(spec.with_slug());
        self
    }

    /// Builds the host within a Tokio runtime.
    ///
    /// # Errors
    /// No runtime, TLS setup failed, a server refused by the guard, a transport that is not built
    /// in, or a duplicate or empty name.
    /// Nothing is started then.
    pub fn build(self) -> Result<Host, BuildError> {
        tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        check_servers(&self.servers, self.guard.as_deref())?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::start()));
        let dial = match self.dial {
            Some(dial) => dial,
            None => Arc::new(RealDial {
                executors: self.executors.or_else(|| no_executors(&self.tasks, &clock)),
                tasks: self.tasks.clone(),
                client: self.client,
                http: http_dial()?,
                stdio_limits: StdioLimits::default(),
                eras: EraCache::default(),
                launcher: None,
                instance: None,
            }),
        };
        for spec in &self.servers {
            dial.check_transport(spec)?;
        }
        let ports = HostPorts {
            dial,
            clock,
            tasks: self.tasks,
            notifications: self.notifications,
            manifests: self.manifests,
            pins: self.pins,
            journal: self.journal,
            audit: self.audit,
            keys: self.keys,
        };
        let host = Host::start(Vec::new(), self.limits, ports);
        // Before any server is added, so that nothing forbidden becomes visible.
        host.set_policy(self.policy);
        host.set_guard(self.guard);
        host.apply_config(self.servers);
        Ok(host)
    }
}

fn check_servers(
    servers: &[ServerSpec],
    guard: Option<&dyn AccessGuard>,
) -> Result<(), BuildError> {
    let mut names = BTreeMap::new();
    for spec in servers {
        let name = &spec.name;
        if name.is_empty() {
            return Err(BuildError::NoName);
        }
        if let Some(before) = names.insert(name, spec) {
            spec.check_clash(before).map_err(BuildError::NameClash)?;
            return Err(BuildError::TwoServers(Arc::clone(spec.display_name())));
        }
        if let Some(GuardDecision::Deny { reason }) =
            guard.map(|guard| guard.check_access(name, None))
        {
            let server = Arc::clone(name);
            return Err(BuildError::Denied { server, reason });
        }
    }
    Ok(())
}

/// Returns the connector to servers over HTTP.
#[cfg(feature = "http")]
fn http_dial() -> Result<Option<Arc<dyn TransportDial>>, BuildError> {
    let dial = HttpDial::new().map_err(BuildError::Tls)?;
    Ok(Some(Arc::new(dial)))
}

#[cfg(not(feature = "http"))]
const fn http_dial() -> Result<Option<Arc<dyn TransportDial>>, BuildError> {
    Ok(None)
}

/// Returns the connector through executors of which none is connected.
#[cfg(feature = "executor")]
fn no_executors(tasks: &TaskTracker, clock: &Arc<dyn Clock>) -> Option<Arc<dyn TransportDial>> {
    let (tasks, clock) = (tasks.clone(), Arc::clone(clock));
    let registry = ExecutorRegistry::new(tasks, clock, ExecutorRegistryOptions::default());
    Some(Arc::new(ExecutorDial::new(registry)))
}

#[cfg(not(feature = "executor"))]
fn no_executors(_: &TaskTracker, _: &Arc<dyn Clock>) -> Option<Arc<dyn TransportDial>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_outside_runtime_fails() {
        let built = Host::builder().build();
        assert!(matches!(built, Err(BuildError::NoRuntime)), "{built:?}");
    }
}
