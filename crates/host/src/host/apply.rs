//! Applies a changed configuration while calls continue: only servers with a changed entry restart.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::stderr::{LogSequencer, StderrLimits, StderrLog};
use tokio::time::timeout_at;

use super::{Host, HostLimits};
use crate::callpath::ServerMap;
use crate::dial::MissingFeature;
use crate::events::EventKind;
use crate::spec::{NameClash, ServerSpec, resolve_names};
use crate::supervisor::Supervisor;

/// Maximum wait for new servers to settle.
const SETTLE_WAIT: Duration = Duration::from_secs(5);

/// Result of applying a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    /// Added servers.
    pub added: Vec<Arc<str>>,
    /// Restarted servers.
    pub changed: Vec<ChangedServer>,
    /// Removed servers.
    pub removed: Vec<Arc<str>>,
    /// Unchanged servers.
    pub kept: Vec<Arc<str>>,
    /// Servers omitted because another server has the same slug.
    pub clashes: Vec<NameClash>,
    /// Servers omitted because their transport needs a feature that is not built in.
    pub unsupported: Vec<MissingFeature>,
}

/// A server with a changed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedServer {
    /// The server.
    pub server: Arc<str>,
    /// Changed keys of the entry.
    pub keys: Vec<&'static str>,
}

impl ApplyReport {
    /// True if no server changed.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn sort_names(&mut self) {
        self.added.sort();
        self.changed.sort_by(|a, b| a.server.cmp(&b.server));
        self.removed.sort();
        self.kept.sort();
    }
}

/// Servers started by the last configuration.
#[derive(Debug, Default)]
pub(super) struct StartingServers {
    servers: Vec<Supervisor>,
    until: MonotonicTime,
}

impl StartingServers {
    /// Adds starting servers and drops settled ones.
    pub(super) fn track(&mut self, fresh: &[Supervisor], now: MonotonicTime) {
        if now >= self.until {
            self.servers.clear();
        }
        self.servers
            .retain(|server| !server.subscribe_state().borrow().is_settled());
        self.servers.extend_from_slice(fresh);
        self.until = now.plus(SETTLE_WAIT);
    }
}

impl Host {
    /// Lets the calls of replaced servers end in the background, then stops the servers.
    fn retire_servers(&self, retired: Vec<Supervisor>) {
        for server in retired {
            let retirement = async move { server.retire().await };
            self.deps.tasks.spawn("retirement", retirement);
        }
    }

    /// Replaces the supervised servers.
    ///
    /// A server with an unchanged spec continues undisturbed. A server with a changed spec gets a
    /// successor at once; its calls in flight end with it. Its catalog entries stay until the
    /// successor lists. Names are handled as in [`spawn`](Self::spawn): of two specs with the same
    /// given name the last wins; of two given names with the same slug the first wins, and the
    /// second is in [`ApplyReport::clashes`].
    pub fn apply_config(&self, specs: Vec<ServerSpec>) -> ApplyReport {
        let mut starting = lock(&self.starting);
        let mut applied = ApplyReport::default();
        if self.call_path.closing.load(Ordering::Relaxed) {
            return applied;
        }
        let mut specs = resolve_names(specs, &mut applied.clashes);
        applied.unsupported = self.omit_unsupported(&mut specs);
        self.deps.pins.register_servers(&specs);
        let old = self.call_path.servers.load_full();
        let mut new = ServerMap::with_capacity_and_hasher(specs.len(), old.hasher().clone());
        let (mut fresh, mut retired) = (Vec::new(), Vec::new());
        for spec in specs {
            let name = Arc::clone(&spec.name);
            let server = match old.get(&name) {
                None => {
                    applied.added.push(Arc::clone(&name));
                    self.start_server(spec, None)
                }
                // A configured server displaces a peer's server and is not its successor.
                Some(before) if before.is_peer_server() => {
                    self.displace_peer_server(before);
                    applied.added.push(Arc::clone(&name));
                    retired.push(before.clone());
                    self.start_server(spec, None)
                }
                Some(before) => {
                    let keys = before.spec().changed_keys(&spec);
                    if keys.is_empty() {
                        applied.kept.push(Arc::clone(&name));
                        new.insert(name, before.clone());
                        continue;
                    }
                    let server = Arc::clone(&name);
                    applied.changed.push(ChangedServer { server, keys });
                    retired.push(before.clone());
                    self.start_server(spec, Some(before))
                }
            };
            fresh.push(server.clone());
            new.insert(name, server);
        }
        let rest = old.iter().filter(|(name, _)| !new.contains_key(*name));
        let (peers, dropped): (Vec<_>, Vec<_>) =
            rest.partition(|(_, server)| server.is_peer_server());
        // Peer servers come and go with their peers, independent of the configuration.
        new.extend(
            peers
                .into_iter()
                .map(|(name, one)| (Arc::clone(name), one.clone())),
        );
        for (name, server) in dropped {
            applied.removed.push(Arc::clone(name));
            retired.push(server.clone());
        }
        // Before the catalog changes, so that list notifications wait for the new servers.
        starting.track(&fresh, self.call_path.clock.now());
        self.call_path.servers.store(Arc::new(new));
        self.call_path.catalog.withdraw_servers(&applied.removed);
        // After the swap: a call still at the old server started earlier and caches nothing.
        for changed in &applied.changed {
            self.call_path.cache.purge_server(&changed.server);
        }
        for removed in &applied.removed {
            self.call_path.cache.forget_server(removed);
        }
        drop(starting);
        self.retire_servers(retired);
        for server in &fresh {
            // Wanted subscriptions move to the successor.
            self.subscriptions.wake(server);
        }
        applied.sort_names();
        self.emit_config_event(&applied);
        applied
    }

    /// Removes and returns the servers whose transport is not built in.
    fn omit_unsupported(&self, specs: &mut Vec<ServerSpec>) -> Vec<MissingFeature> {
        let mut unsupported = Vec::new();
        specs.retain(|spec| {
            let checked = self.deps.dial.check_transport(spec);
            checked.map_err(|missing| unsupported.push(missing)).is_ok()
        });
        unsupported
    }

    /// Detaches a peer's server in favour of a configured server of the same name.
    fn displace_peer_server(&self, server: &Supervisor) {
        let name = &server.spec().name;
        tracing::warn!(
            server = %name,
            peer = server.spec().transport.display_target(),
            "configured server takes the name; the peer's server is not served"
        );
        server.detach();
        self.call_path.catalog.withdraw_server(name);
        self.call_path.cache.forget_server(name);
    }

    /// Changes the limits. Calls in flight beyond a new limit continue.
    pub fn set_limits(&self, limits: HostLimits) {
        self.call_path.limiter.set_limit(limits.principal_calls_max);
        self.call_path.cache.set_limits(limits.cache);
        self.accounts.set_limits(limits.shares);
        self.accounts.set_rates(limits.rates);
        self.limits.store(Arc::new(limits));
    }

    /// Waits, at most five seconds, until the servers of the last configuration are ready or
    /// failed.
    ///
    /// Used before notifying sessions of changed lists, to notify once.
    pub async fn wait_applied(&self) {
        let (fresh, until) = {
            let starting = lock(&self.starting);
            (starting.servers.clone(), starting.until)
        };
        let until = self.call_path.clock.instant(until);
        for server in fresh {
            let mut state = server.subscribe_state();
            let settled = state.wait_for(|state| state.is_settled());
            if timeout_at(until, settled).await.is_err() {
                return;
            }
        }
    }

    /// Starts a server; a predecessor's log lines stay in the log.
    pub(super) fn start_server(&self, spec: ServerSpec, before: Option<&Supervisor>) -> Supervisor {
        let log = match before {
            Some(before) => before.log().with_secrets(Arc::clone(&spec.secrets)),
            None => new_log(&spec, &self.stamps),
        };
        Supervisor::start(spec, log, &self.deps)
    }

    pub(super) fn emit_config_event(&self, applied: &ApplyReport) {
        if applied.is_unchanged() {
            return;
        }
        let changed = applied.changed.iter();
        self.deps.events.publish(EventKind::Config {
            added: applied.added.clone(),
            changed: changed.map(|changed| Arc::clone(&changed.server)).collect(),
            removed: applied.removed.clone(),
        });
    }
}

/// Creates an empty log for a server.
pub(super) fn new_log(spec: &ServerSpec, stamps: &Arc<LogSequencer>) -> Arc<StderrLog> {
    let (name, secrets) = (Arc::clone(&spec.name), Arc::clone(&spec.secrets));
    StderrLog::with_redactor(name, Arc::clone(stamps), StderrLimits::default(), secrets)
}
