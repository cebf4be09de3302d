//! Puts a host together; whatever is not said has its default.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_core::lane::KeyScope;
use bowline_core::policy::Policy;
use bowline_journal::{Journal, Memory};
use bowline_link::http::HttpLimits;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use bowline_link::{ClientInfo, StdioLimits};
use thiserror::Error;

use crate::audit::{Audit, Unaudited};
use crate::dial::{Eras, RealDial};
use crate::executor::{Executors, ExecutorsOptions};
use crate::guard::{Guard, Verdict};
use crate::host::{Host, HostLimits, Ports};
use crate::manifest::{Forgetful, Manifests};
use crate::pins::{PinStore, Unkept};
use crate::ports::{Audience, Clock, Silent, SystemClock};
use crate::spec::{NameClash, ServerSpec};
use crate::supervisor::Dial;
use crate::tasks::Tasks;

/// Why a host could not be built.
#[derive(Debug, Error)]
pub enum BuildError {
    /// There is no runtime to run servers on.
    #[error("a host is built inside a tokio runtime, and there is none here")]
    NoRuntime,
    /// Servers cannot be reached over TLS.
    #[error("cannot set up TLS")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A server has no name.
    #[error("a server needs a name")]
    NoName,
    /// Two servers have one name.
    #[error("two servers are named `{0}`")]
    TwoServers(Arc<str>),
    /// Two servers have names with one slug.
    #[error(transparent)]
    NameClash(NameClash),
    /// The guard does not want a server.
    #[error("server `{server}` is refused: {reason}")]
    Denied {
        /// The server.
        server: Arc<str>,
        /// What the guard said.
        reason: Arc<str>,
    },
}

/// A host that is being put together.
///
/// Nothing of it is global: hosts of one process share no policy, no guard, no cache and no
/// breaker, and building one installs no logger and no signal handler. The default policy lets
/// the owner do everything and everybody else nothing.
#[derive(Debug)]
#[must_use]
pub struct HostBuilder {
    policy: Policy,
    guard: Option<Box<dyn Guard>>,
    limits: HostLimits,
    clock: Option<Arc<dyn Clock>>,
    tasks: Tasks,
    dial: Option<Arc<dyn Dial>>,
    executors: Option<Executors>,
    audience: Arc<dyn Audience>,
    manifests: Arc<dyn Manifests>,
    pins: Arc<dyn PinStore>,
    journal: Arc<dyn Journal>,
    audit: Arc<dyn Audit>,
    keys: KeyScope,
    client: ClientInfo,
    servers: Vec<ServerSpec>,
}

impl Host {
    /// Begins a host.
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
    ///     ("greet", "Greets."),
    ///     &json!({"type": "object"}),
    ///     |_, _| async { Ok(ToolOutput::of_text("hello")) },
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
            tasks: Tasks::default(),
            dial: None,
            executors: None,
            audience: Arc::new(Silent),
            manifests: Arc::new(Forgetful),
            pins: Arc::new(Unkept),
            journal: Arc::new(Memory::default()),
            audit: Arc::new(Unaudited),
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
    /// Says who may do what: a policy, or a list of roles.
    pub fn policy(mut self, policy: impl Into<Policy>) -> Self {
        self.policy = policy.into();
        self
    }

    /// Gives a guard the last word; without one, the policy has it.
    pub fn guard(mut self, guard: impl Guard + 'static) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }

    /// Says how much is taken on.
    pub const fn limits(mut self, limits: HostLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Goes by another clock than that of the machine.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Has its tasks run with others that the program waits for.
    pub fn tasks(mut self, tasks: Tasks) -> Self {
        self.tasks = tasks;
        self
    }

    /// Connects in another way than by child processes and HTTP. Servers that are part of the
    /// program are not dialled.
    pub fn dial(mut self, dial: Arc<dyn Dial>) -> Self {
        self.dial = Some(dial);
        self
    }

    /// Knows the executors through which servers are reached; by default there are none.
    pub fn executors(mut self, executors: Executors) -> Self {
        self.executors = Some(executors);
        self
    }

    /// Hears what servers say outside calls.
    pub fn audience(mut self, audience: Arc<dyn Audience>) -> Self {
        self.audience = audience;
        self
    }

    /// Keeps what servers offered between lives of the program; by default nothing is kept.
    pub fn manifests(mut self, manifests: Arc<dyn Manifests>) -> Self {
        self.manifests = manifests;
        self
    }

    /// Keeps which definitions were approved between lives of the program; by default they are
    /// kept for this one.
    pub fn pins(mut self, pins: Arc<dyn PinStore>) -> Self {
        self.pins = pins;
        self
    }

    /// Has a row written for every call; by default there is no trail.
    pub fn audit(mut self, audit: Arc<dyn Audit>) -> Self {
        self.audit = audit;
        self
    }

    /// Remembers queued writes between lives of the program; by default they are remembered for
    /// this one.
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = journal;
        self
    }

    /// Binds idempotency keys to their principals with a secret of this host. Servers see the same
    /// keys after a restart only where the secret is the same; by default there is none, and two
    /// hosts give equal keys to equal names of principals.
    pub fn key_scope(mut self, keys: KeyScope) -> Self {
        self.keys = keys;
        self
    }

    /// Presents itself to servers under this name and version.
    pub fn client(mut self, name: &str, version: &str) -> Self {
        self.client = ClientInfo {
            name: name.into(),
            version: version.into(),
        };
        self
    }

    /// Takes a server into care from the beginning. Unless it is lazy it is started in the
    /// background; [`Host::spawn`] waits for it. Its name is treated as in a config file: one that
    /// is no server name becomes its slug, and `My_Server` is `my-server`.
    pub fn server(mut self, spec: ServerSpec) -> Self {
        self.servers.push(spec.with_slug());
        self
    }

    /// Builds the host, inside a tokio runtime.
    ///
    /// # Errors
    /// There is no runtime, TLS cannot be set up, the guard refuses a server, or a name is taken
    /// or empty. Nothing was started then.
    pub fn build(self) -> Result<Host, BuildError> {
        tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        check(&self.servers, self.guard.as_deref())?;
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock::start()));
        let dial = match self.dial {
            Some(dial) => dial,
            None => {
                let executors = self.executors.unwrap_or_else(|| {
                    let (tasks, clock) = (self.tasks.clone(), Arc::clone(&clock));
                    Executors::new(tasks, clock, ExecutorsOptions::default())
                });
                Arc::new(real(self.tasks.clone(), self.client, executors)?)
            }
        };
        let ports = Ports {
            dial,
            clock,
            tasks: self.tasks,
            audience: self.audience,
            manifests: self.manifests,
            pins: self.pins,
            journal: self.journal,
            audit: self.audit,
            keys: self.keys,
        };
        let host = Host::start(Vec::new(), self.limits, ports);
        // Before any server is there, so that nothing is seen that may not be.
        host.set_policy(self.policy);
        host.set_guard(self.guard);
        host.apply(self.servers);
        Ok(host)
    }
}

fn check(servers: &[ServerSpec], guard: Option<&dyn Guard>) -> Result<(), BuildError> {
    let mut names = BTreeMap::new();
    for spec in servers {
        let name = &spec.name;
        if name.is_empty() {
            return Err(BuildError::NoName);
        }
        if let Some(before) = names.insert(name, spec) {
            spec.check_clash(before).map_err(BuildError::NameClash)?;
            return Err(BuildError::TwoServers(Arc::clone(spec.given_name())));
        }
        if let Some(Verdict::Deny { reason }) = guard.map(|guard| guard.check(name, None)) {
            let server = Arc::clone(name);
            return Err(BuildError::Denied { server, reason });
        }
    }
    Ok(())
}

/// Returns what connects to child processes and over HTTP.
fn real(
    spawner: Tasks,
    client: ClientInfo,
    executors: Executors,
) -> Result<RealDial<Tasks>, BuildError> {
    let http = HyperClient::new(ClientLimits::default());
    let http = http.map_err(|error| BuildError::Tls(Box::new(error)))?;
    Ok(RealDial {
        spawner,
        client,
        http: Arc::new(http),
        executors,
        stdio_limits: StdioLimits::default(),
        http_limits: HttpLimits::default(),
        eras: Eras::default(),
        launcher: None,
        instance: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_not_built_outside_a_runtime() {
        let built = Host::builder().build();
        assert!(matches!(built, Err(BuildError::NoRuntime)), "{built:?}");
    }
}
