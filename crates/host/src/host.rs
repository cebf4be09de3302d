//! The host: supervised servers, the catalog, and calls. No HTTP, no files, no globals.

mod accept_pins;
mod active_policy;
mod apply;
mod discovery;
mod embed;
mod exposure;
mod host_limits;
mod host_status;
mod measure;
#[cfg(feature = "broker")]
mod peer_servers;
mod principal_view;
mod refresh;
mod session_features;
mod spawn;
mod start_unlisted;
mod view_cache;

use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bowline_core::accounts::ConcurrencyView;
use bowline_core::cache::CacheView;
use bowline_core::call::{CallReply, CallRequest, CallSubject};
use bowline_core::error::CallError;
use bowline_core::lane::KeyScope;
use bowline_core::name::to_slug;
use bowline_core::sync::lock;
use bowline_journal::Journal;
use bowline_link::stderr::LogSequencer;
use bowline_runtime::{Clock, TaskTracker};
use tokio::sync::{Semaphore, watch};

use self::apply::StartingServers;
use self::view_cache::ViewCache;
use crate::accounts::PrincipalAccounts;
use crate::audit::AuditSink;
use crate::authorizer::Authorizer;
use crate::callpath::budget::{BudgetAccounts, CallLimiter};
use crate::callpath::call_record::CallAuditor;
use crate::callpath::output_schema::OutputValidator;
use crate::callpath::response_cache::ResponseCache;
use crate::callpath::result_store::ResultStore;
use crate::callpath::{CallPath, ServerMap};
use crate::catalog::{Catalog, CatalogStore};
use crate::denials::DenialReporter;
use crate::events::EventBus;
use crate::expose::{MetaTool, ToolSearchIndex};
use crate::in_process_link::DialRouter;
use crate::manifest::ManifestStore;
use crate::notification_fanout::NotificationFanout;
use crate::offload::OffloadPool;
use crate::outbox::{self, Outbox};
use crate::pins::{PinRegistry, PinStore};
use crate::ports::NotificationSink;
use crate::redaction::RedactingDial;
use crate::session_state::SessionState;
use crate::spec::{ServerSpec, resolve_names};
use crate::subscription_sync::SubscriptionSync;
use crate::supervisor::{Dial, ServerAction, ServerStatus, Supervisor, SupervisorDeps};

pub use self::apply::{ApplyReport, ChangedServer};
pub use bowline_api::reload::{FailedList, RefreshReport};
pub use bowline_api::tools::{DiscoveryEntry, DiscoveryError};
pub use discovery::{DISCOVER_MAX, FRESH_LIST_WAIT, ServerDiscovery};
pub use host_limits::HostLimits;
#[cfg(feature = "broker")]
pub use peer_servers::{AdoptError, AdoptReport, PEER_SERVERS_MAX};

/// All supervised servers of a gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    call_path: Arc<CallPath>,
    subscriptions: Arc<SubscriptionSync>,
    /// Shared dependencies of every supervisor.
    deps: SupervisorDeps,
    limits: Arc<ArcSwap<HostLimits>>,
    /// Usage of shared resources by principal.
    accounts: PrincipalAccounts,
    /// Numbers the log lines of all servers.
    stamps: Arc<LogSequencer>,
    /// Permits a single process measurement at a time.
    measure_permit: Arc<Semaphore>,
    /// Servers added by the latest configuration, until settled.
    starting: Arc<Mutex<StartingServers>>,
    /// Rendered lists, shared by principals with equal rights.
    views: Arc<ViewCache>,
    /// Delivers server notifications outside calls.
    fanout: Arc<NotificationFanout>,
    /// Search index of the catalog's tools, built by the first search.
    search_index: Arc<ArcSwapOption<ToolSearchIndex>>,
}

/// Interfaces between the host and the outside world.
#[derive(Clone, Debug)]
pub struct HostPorts {
    /// Connects to servers.
    pub dial: Arc<dyn Dial>,
    /// Time source.
    pub clock: Arc<dyn Clock>,
    /// Spawns all tasks.
    pub tasks: TaskTracker,
    /// Receives server notifications outside calls.
    pub notifications: Arc<dyn NotificationSink>,
    /// Stores the lists of servers between runs.
    pub manifests: Arc<dyn ManifestStore>,
    /// Stores approved definitions.
    pub pins: Arc<dyn PinStore>,
    /// Stores queued writes until delivery.
    pub journal: Arc<dyn Journal>,
    /// Receives an audit entry for every call.
    pub audit: Arc<dyn AuditSink>,
    /// Binds idempotency keys to principals before servers see the keys.
    pub keys: KeyScope,
}

/// Assigns the names of the first servers and registers them with the pins.
fn register_names(specs: Vec<ServerSpec>, pins: &PinRegistry) -> Vec<ServerSpec> {
    let mut clashes = Vec::new();
    let specs = resolve_names(specs, &mut clashes);
    for clash in clashes {
        tracing::warn!(error = &clash as &dyn std::error::Error, "server left out");
    }
    pins.register_servers(&specs);
    specs
}

fn new_log_stamps(clock: Arc<dyn Clock>) -> Arc<LogSequencer> {
    LogSequencer::new(move || clock.unix_ms())
}

/// Returns the dial whose links redact secrets in results.
fn with_redaction(dial: DialRouter) -> Arc<dyn Dial> {
    Arc::new(RedactingDial(Arc::new(dial)))
}

fn start_supervisor(
    spec: ServerSpec,
    stamps: &Arc<LogSequencer>,
    deps: &SupervisorDeps,
) -> (Arc<str>, Supervisor) {
    let (name, log) = (Arc::clone(&spec.name), apply::new_log(&spec, stamps));
    (name, Supervisor::start(spec, log, deps))
}

impl Host {
    /// Supervises `specs` and starts the non-lazy servers in the background. Queued writes are sent
    /// under the policy in force at delivery, so set another policy before the first await.
    #[must_use]
    pub fn start(specs: Vec<ServerSpec>, limits: HostLimits, ports: HostPorts) -> Self {
        let accounts = PrincipalAccounts::new(limits.shares);
        Self::start_with_accounts(specs, limits, ports, accounts)
    }

    /// Like [`start`](Self::start), with accounts shared with other components.
    #[must_use]
    pub fn start_with_accounts(
        specs: Vec<ServerSpec>,
        limits: HostLimits,
        ports: HostPorts,
        accounts: PrincipalAccounts,
    ) -> Self {
        let HostPorts {
            dial,
            clock,
            tasks,
            notifications: audience,
            manifests,
            pins,
            journal,
            audit,
            keys,
        } = ports;
        let events = EventBus::new(Arc::clone(&clock));
        let catalog = Arc::new(CatalogStore::default());
        let authorizer = Arc::new(Authorizer::new(DenialReporter::new(events.clone())));
        let sessions = Arc::new(SessionState::new(Arc::clone(&authorizer), accounts.clone()));
        let cache = Arc::new(ResponseCache::new(limits.cache, Arc::clone(&clock)));
        let fanout = Arc::new(NotificationFanout::new(audience));
        let pins = PinRegistry::open(pins, Arc::clone(&clock), Arc::new(events.clone()));
        let deps = SupervisorDeps {
            dial: with_redaction(DialRouter::new(dial, &clock, &tasks)),
            catalog: Arc::clone(&catalog),
            tasks: tasks.clone(),
            clock: Arc::clone(&clock),
            notifications: Arc::clone(&fanout) as Arc<dyn NotificationSink>,
            sessions: Arc::clone(&sessions),
            manifests,
            pins: Arc::new(pins),
            cache: Arc::clone(&cache),
            events: events.clone(),
            start_permits: Arc::new(Semaphore::new(limits.starts_max)),
        };
        let specs = register_names(specs, &deps.pins).into_iter();
        let stamps = new_log_stamps(Arc::clone(&clock));
        let servers = specs.map(|spec| start_supervisor(spec, &stamps, &deps));
        let servers: ServerMap = servers.collect();
        events.follow_catalog(catalog.subscribe_version(), &tasks);
        let budget = BudgetAccounts::new(Arc::clone(&journal), Arc::clone(&clock), tasks.clone());
        let outbox = Outbox::new(journal, &audit, &deps, &fanout);
        let subscriptions = SubscriptionSync::new(Arc::clone(&sessions), Arc::clone(&clock), tasks);
        let call_path = Arc::new(CallPath {
            catalog,
            sessions,
            authorizer,
            budget,
            cache,
            outbox,
            validator: OutputValidator::default(),
            auditor: CallAuditor::new(audit, Arc::clone(&clock)),
            key_scope: keys,
            limiter: CallLimiter::new(limits.principal_calls_max),
            offload: OffloadPool::default(),
            stored_results: ResultStore::new(clock.unix_ms()),
            servers: ArcSwap::from_pointee(servers),
            clock,
            closing: AtomicBool::new(false),
        });
        call_path.outbox.start(Arc::downgrade(&call_path));
        Self {
            call_path,
            subscriptions,
            deps,
            accounts: accounts.with_rates(limits.rates),
            limits: Arc::new(ArcSwap::from_pointee(limits)),
            stamps,
            measure_permit: Arc::new(Semaphore::new(1)),
            starting: Arc::default(),
            views: Arc::new(ViewCache::default()),
            fanout,
            search_index: Arc::default(),
        }
    }

    pub(crate) fn outbox_shared_state(&self) -> &Arc<outbox::OutboxShared> {
        self.call_path.outbox.shared()
    }

    pub(crate) const fn notification_fanout(&self) -> &Arc<NotificationFanout> {
        &self.fanout
    }

    /// Returns the event bus.
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
    /// let mut watch = host.events().subscribe();
    /// host.stop_server("clock").await?;
    /// let event = serde_json::to_value(watch.recv().await?)?;
    /// assert_eq!((&event["event"], &event["server"]), (&json!("state"), &json!("clock")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn events(&self) -> &EventBus {
        &self.deps.events
    }

    /// Executes a call. See [`CallPath::call`].
    pub async fn call<C>(&self, call: C) -> Result<CallReply, CallError>
    where
        C: Borrow<CallRequest> + Send,
    {
        let call = call.borrow();
        // Boxed because it is rare: keeps the future of an ordinary call small.
        if let Some(meta) = MetaTool::from_call(call)
            && let Some(result) = Box::pin(self.call_meta_tool(meta, call)).await
        {
            return result;
        }
        if let CallSubject::Resource(uri) = &call.subject
            && let Some(stored) = self.call_path.read_stored_result(call, uri)
        {
            return stored;
        }
        self.call_path.call(call).await
    }

    /// Returns the audit sink, for entries that do not stem from calls.
    #[must_use]
    pub fn audit(&self) -> &Arc<dyn AuditSink> {
        self.call_path.auditor.sink()
    }

    /// Returns the usage of shared resources by principal.
    #[must_use]
    pub const fn accounts(&self) -> &PrincipalAccounts {
        &self.accounts
    }

    /// Returns the number of calls in flight by principal.
    #[must_use]
    pub fn calls_in_flight(&self) -> ConcurrencyView {
        self.call_path.limiter.usage()
    }

    /// Returns size and hit counts of the response cache, over all servers.
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
    /// host.call_tool(&owner, "clock", "now", json!({})).await?;
    /// let stats = host.cache_stats();
    /// assert_eq!((stats.hits, stats.entries), (0, 0), "no answer of the clock stays good");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cache_stats(&self) -> CacheView {
        self.call_path.cache.stats()
    }

    /// Returns the clock of this host.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.call_path.clock
    }

    /// Returns the task tracker, for servers built on this host.
    #[must_use]
    pub const fn tasks(&self) -> &TaskTracker {
        &self.deps.tasks
    }

    /// Returns the current catalog.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.call_path.catalog.current()
    }

    /// Returns a receiver of catalog versions.
    #[must_use]
    pub fn catalog_changes(&self) -> watch::Receiver<u64> {
        self.call_path.catalog.subscribe_version()
    }

    /// Returns the names of all servers, sorted.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.call_path.servers.load().keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns a server by name or by given name.
    pub fn server(&self, name: &str) -> Result<Supervisor, CallError> {
        let servers = self.call_path.servers.load();
        let known = servers.get(name).or_else(|| servers.get(&*to_slug(name)));
        known.cloned().ok_or_else(|| CallError::UnknownServer {
            server: name.into(),
        })
    }

    /// Waits, bounded by `first_list_wait`, until every non-lazy server is ready or has failed
    /// once.
    ///
    /// An agent that lists tools right after startup should see them, and a slow server must not
    /// delay the list.
    pub async fn wait_settled(&self) {
        let servers = self.call_path.servers.load().values().cloned().collect();
        self.wait_servers_settled(servers).await;
    }

    /// Waits, bounded by `first_list_wait`, until these servers are ready or have failed once.
    pub(super) async fn wait_servers_settled(&self, servers: Vec<Supervisor>) {
        let all = async {
            for server in servers {
                // The sender lives as long as the supervisor.
                let _ = server
                    .subscribe_state()
                    .wait_for(|state| state.is_settled())
                    .await;
            }
        };
        let now = self.call_path.clock.now();
        // Counted from the start of the clock: later lists never wait.
        let end = bowline_core::time::MonotonicTime(0).plus(self.limits.load().first_list_wait);
        if now < end {
            let _ = tokio::time::timeout(now.duration_until(end), all).await;
        }
    }

    /// True once the host refuses calls and shuts down.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.call_path.closing.load(Ordering::Relaxed)
    }

    /// Applies an action to a server and waits, at most `wait`, for the resulting state.
    pub async fn apply_action(
        &self,
        name: &str,
        action: ServerAction,
        wait: Duration,
    ) -> Result<ServerStatus, CallError> {
        let server = self.server(name)?;
        let settled = async {
            // The sender lives as long as the supervisor.
            let _ = server
                .subscribe_state()
                .wait_for(|state| state.is_settled())
                .await;
            Ok(())
        };
        let outcome = match action {
            // Calls in flight may take long to end; the action is sent all the same.
            ServerAction::Reload => {
                let all = async {
                    server.apply_action(action).await?;
                    settled.await
                };
                tokio::time::timeout(wait, all).await
            }
            ServerAction::Start | ServerAction::Stop | ServerAction::Restart => {
                server.apply_action(action).await?;
                tokio::time::timeout(wait, settled).await
            }
        };
        outcome.unwrap_or(Ok(()))?;
        self.server_status(&server.spec().name)
    }

    /// Refuses further calls and stops all servers concurrently, waiting at most `stop_wait`.
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
    /// host.shutdown().await;
    /// let refused = host.call_tool(&owner, "clock", "now", json!({})).await.unwrap_err();
    /// assert_eq!(refused.to_string(), "the gateway is shutting down");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn shutdown(&self) {
        self.call_path.closing.store(true, Ordering::Relaxed);
        self.call_path.outbox.close().await;
        self.deps.events.close();
        self.subscriptions.close();
        // From here on no configuration is applied.
        let servers = {
            let _turn = lock(&self.starting);
            self.call_path.servers.swap(Arc::new(ServerMap::default()))
        };
        let mut servers: Vec<_> = servers.values().cloned().collect();
        servers.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        let stops = servers
            .into_iter()
            .map(|server| async move { server.apply_action(ServerAction::Stop).await });
        let all = async {
            let mut set = tokio::task::JoinSet::new();
            for stop in stops {
                set.spawn(stop);
            }
            while set.join_next().await.is_some() {}
        };
        if tokio::time::timeout(self.limits.load().stop_wait, all)
            .await
            .is_err()
        {
            tracing::warn!("some servers did not stop in time");
        }
        // Last: calls admitted earlier may have been charged until here.
        self.call_path.budget.flush().await;
    }
}
