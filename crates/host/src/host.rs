//! The host: servers in care, their catalog, and calls to them. No HTTP, no files, no globals.

mod apply;
mod discover;
mod embed;
mod expose;
mod features;
mod limits;
mod measure;
mod peers;
mod pins;
mod refresh;
mod rules;
mod shown;
mod spawn;
mod status;
mod view;
mod views;

use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bowline_core::cache::CacheView;
use bowline_core::call::{Call, Reply};
use bowline_core::error::CallError;
use bowline_core::lane::KeyScope;
use bowline_core::name::slug;
use bowline_core::seats::SeatsView;
use bowline_core::sync::lock;
use bowline_journal::Journal;
use bowline_link::stderr::Stamps;
use tokio::sync::{Semaphore, watch};

use crate::accounts::PrincipalAccounts;
use crate::audience::Hall;
use crate::audit::Audit;
use crate::callpath::audited::Auditor;
use crate::callpath::cached::Answers;
use crate::callpath::charge::Purse;
use crate::callpath::checked::Checker;
use crate::callpath::kept_results::KeptResults;
use crate::callpath::seat::SeatTable;
use crate::callpath::{CallPath, Servers};
use crate::catalog::{Catalog, CatalogStore};
use crate::decide::Decider;
use crate::denials::Denials;
use crate::events::Events;
use crate::expose::{Index, Meta};
use crate::inprocess::Beside;
use crate::manifest::Manifests;
use crate::memory::Memory;
use crate::offload::Offload;
use crate::outbox::{self, Outbox};
use crate::pins::{PinStore, Pins};
use crate::ports::{Audience, Clock};
use crate::redaction::CleanDial;
use crate::spec::{ServerSpec, settle_names};
use crate::standing::Standing;
use crate::supervisor::{Dial, Order, ServerStatus, Supervisor, Surroundings};
use crate::tasks::Tasks;

use self::apply::Turn;
pub use self::apply::{Applied, Changed};
use self::views::Views;
pub use discover::{DISCOVER_MAX, Discovered, FRESH_LIST_WAIT, Undiscovered};
pub use embed::{DiscoveredEntry, DiscoveredError};
pub use limits::HostLimits;
pub use peers::{AdoptError, Adopted, PEER_SERVERS_MAX};
pub use refresh::{FailedList, Refreshed};

/// The servers in care. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    path: Arc<CallPath>,
    standing: Arc<Standing>,
    /// What each supervisor is given.
    around: Surroundings,
    limits: Arc<ArcSwap<HostLimits>>,
    /// What each principal holds of what all share.
    accounts: PrincipalAccounts,
    /// Numbers the lines of all logs.
    stamps: Arc<Stamps>,
    /// Lets one look at the processes of servers at a time.
    measuring: Arc<Semaphore>,
    /// Servers that another configuration brought, until they stand.
    turn: Arc<Mutex<Turn>>,
    /// What principals see, kept for those who see the same.
    views: Arc<Views>,
    /// Who hears what servers say outside calls.
    hall: Arc<Hall>,
    /// The tools of the catalog by what is said of them, once somebody looked for one.
    found: Arc<ArcSwapOption<Index>>,
}

/// The doors of a host to the outside.
#[derive(Clone, Debug)]
pub struct Ports {
    /// Connects to servers.
    pub dial: Arc<dyn Dial>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Runs everything.
    pub tasks: Tasks,
    /// Hears what servers say outside calls.
    pub audience: Arc<dyn Audience>,
    /// Keeps what servers offered.
    pub manifests: Arc<dyn Manifests>,
    /// Keeps which definitions were approved.
    pub pins: Arc<dyn PinStore>,
    /// Remembers writes until they are delivered.
    pub journal: Arc<dyn Journal>,
    /// Takes a row for every call.
    pub audit: Arc<dyn Audit>,
    /// Binds idempotency keys to their principals on the way to servers.
    pub keys: KeyScope,
}

/// Gives the first servers their names, and has the pins know them.
fn know_names(specs: Vec<ServerSpec>, pins: &Pins) -> Vec<ServerSpec> {
    let mut clashes = Vec::new();
    let specs = settle_names(specs, &mut clashes);
    for clash in clashes {
        tracing::warn!(error = &clash as &dyn std::error::Error, "server left out");
    }
    pins.know(&specs);
    specs
}

fn start_stamps(clock: Arc<dyn Clock>) -> Arc<Stamps> {
    Stamps::new(move || clock.unix_ms())
}

fn start_supervisor(
    spec: ServerSpec,
    stamps: &Arc<Stamps>,
    around: &Surroundings,
) -> (Arc<str>, Supervisor) {
    let (name, log) = (Arc::clone(&spec.name), apply::new_log(&spec, stamps));
    (name, Supervisor::start(spec, log, around))
}

impl Host {
    /// Takes `specs` into care and starts those that are not lazy, in the background; queued writes
    /// go out under the policy of that moment, so another is set before anything is awaited.
    #[must_use]
    pub fn start(specs: Vec<ServerSpec>, limits: HostLimits, ports: Ports) -> Self {
        let accounts = PrincipalAccounts::new(limits.shares);
        Self::start_with(specs, limits, ports, accounts)
    }

    /// Does the same with accounts that others use as well.
    #[must_use]
    pub fn start_with(
        specs: Vec<ServerSpec>,
        limits: HostLimits,
        ports: Ports,
        accounts: PrincipalAccounts,
    ) -> Self {
        let Ports {
            dial,
            clock,
            tasks,
            audience,
            manifests,
            pins,
            journal,
            audit,
            keys,
        } = ports;
        let events = Events::new(Arc::clone(&clock));
        let catalog = Arc::new(CatalogStore::default());
        let decider = Arc::new(Decider::new(Denials::new(events.clone())));
        let memory = Arc::new(Memory::new(Arc::clone(&decider), accounts.clone()));
        let answers = Arc::new(Answers::new(limits.cache, Arc::clone(&clock)));
        let hall = Arc::new(Hall::new(audience));
        let around = Surroundings {
            dial: Arc::new(CleanDial(Arc::new(Beside::new(dial, &clock, &tasks)))),
            catalog: Arc::clone(&catalog),
            tasks: tasks.clone(),
            clock: Arc::clone(&clock),
            audience: Arc::clone(&hall) as Arc<dyn Audience>,
            memory: Arc::clone(&memory),
            manifests,
            pins: Arc::new(Pins::open(pins, Arc::clone(&clock), events.clone())),
            answers: Arc::clone(&answers),
            events: events.clone(),
            starts: Arc::new(Semaphore::new(limits.starts_max)),
        };
        let specs = know_names(specs, &around.pins).into_iter();
        let stamps = start_stamps(Arc::clone(&clock));
        let servers = specs.map(|spec| start_supervisor(spec, &stamps, &around));
        let servers: Servers = servers.collect();
        events.follow(catalog.changes(), &tasks);
        let purse = Purse::new(Arc::clone(&journal), Arc::clone(&clock), tasks.clone());
        let outbox = Outbox::new(journal, &audit, &around, &hall);
        let standing = Standing::new(Arc::clone(&memory), Arc::clone(&clock), tasks);
        let path = Arc::new(CallPath {
            catalog,
            memory,
            decider,
            purse,
            answers,
            outbox,
            checker: Checker::default(),
            auditor: Auditor::new(audit, Arc::clone(&clock)),
            keys,
            seats: SeatTable::new(limits.principal_calls_max),
            offload: Offload::default(),
            results: KeptResults::new(clock.unix_ms()),
            servers: ArcSwap::from_pointee(servers),
            clock,
            closing: AtomicBool::new(false),
        });
        path.outbox.start(Arc::downgrade(&path));
        Self {
            path,
            standing,
            around,
            accounts: accounts.with_rates(limits.rates),
            limits: Arc::new(ArcSwap::from_pointee(limits)),
            stamps,
            measuring: Arc::new(Semaphore::new(1)),
            turn: Arc::default(),
            views: Arc::new(Views::default()),
            hall,
            found: Arc::default(),
        }
    }

    pub(crate) fn outbox_shared(&self) -> &Arc<outbox::Shared> {
        self.path.outbox.shared()
    }

    pub(crate) const fn hall(&self) -> &Arc<Hall> {
        &self.hall
    }

    /// Returns the teller of what happens.
    ///
    /// ```
    /// use bowline_host::tools::Toolbox;
    /// use bowline_host::{Host, Server, SpawnOptions, ToolOutput};
    /// use serde_json::json;
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let clock = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
    ///     Ok(ToolOutput::of_text("noon"))
    /// });
    /// let host = Host::builder().build()?;
    /// host.spawn(Server::in_process("clock", clock), SpawnOptions::default()).await?;
    /// let mut watch = host.events().watch();
    /// host.stop("clock").await?;
    /// let event = serde_json::to_value(watch.recv().await?)?;
    /// assert_eq!((&event["event"], &event["server"]), (&json!("state"), &json!("clock")));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn events(&self) -> &Events {
        &self.around.events
    }

    /// Carries one call. See [`CallPath::call`].
    pub async fn call<C>(&self, call: C) -> Result<Reply, CallError>
    where
        C: Borrow<Call> + Send,
    {
        let call = call.borrow();
        // What is rare is boxed, so that a call carries no room for it.
        if let Some(meta) = Meta::of(call)
            && let Some(found) = Box::pin(self.by_finding(meta, call)).await
        {
            return found;
        }
        if let Some(kept) = self.path.read_kept(call) {
            return kept;
        }
        self.path.call(call).await
    }

    /// Returns what takes a row for every call, for what else is to be noted.
    #[must_use]
    pub fn audit(&self) -> &Arc<dyn Audit> {
        self.path.auditor.audit()
    }

    /// Returns what each principal holds of the resources that all share.
    #[must_use]
    pub const fn accounts(&self) -> &PrincipalAccounts {
        &self.accounts
    }

    /// Returns how many calls each principal has in flight.
    #[must_use]
    pub fn seats(&self) -> SeatsView {
        self.path.seats.view()
    }

    /// Returns what is kept of the answers of all servers, and how often that was of use.
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
    /// host.call_tool(&owner, "clock", "now", json!({})).await?;
    /// let stats = host.cache_stats();
    /// assert_eq!((stats.hits, stats.entries), (0, 0), "no answer of the clock stays good");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cache_stats(&self) -> CacheView {
        self.path.answers.view()
    }

    /// Returns the clock everything here goes by.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.path.clock
    }

    /// Returns the starter of tasks, for what serves this host.
    #[must_use]
    pub const fn tasks(&self) -> &Tasks {
        &self.around.tasks
    }

    /// Returns the catalog of this moment.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.path.catalog.current()
    }

    /// Returns a receiver that sees every new version of the catalog.
    #[must_use]
    pub fn catalog_changes(&self) -> watch::Receiver<u64> {
        self.path.catalog.changes()
    }

    /// Returns the names of all servers, sorted.
    #[must_use]
    pub fn servers(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.path.servers.load().keys().cloned().collect();
        names.sort();
        names
    }

    /// Returns one server, by its name or by the name that it was given.
    pub fn server(&self, name: &str) -> Result<Supervisor, CallError> {
        let servers = self.path.servers.load();
        let known = servers.get(name).or_else(|| servers.get(&*slug(name)));
        known.cloned().ok_or_else(|| CallError::UnknownServer {
            server: name.into(),
        })
    }

    /// Waits until every server that starts by itself serves or has failed once, but not long.
    ///
    /// An agent that lists tools right after the start should see them, and one slow server must
    /// not keep it waiting.
    pub async fn settled(&self) {
        let servers = self.path.servers.load().values().cloned().collect();
        self.settle(servers).await;
    }

    /// Waits until these servers serve or have failed once, but not long.
    pub(super) async fn settle(&self, servers: Vec<Supervisor>) {
        let all = async {
            for server in servers {
                // The sender lives as long as the supervisor does.
                let _ = server.state().wait_for(|state| state.is_settled()).await;
            }
        };
        let now = self.path.clock.now();
        // Counted from the start of the clock: later lists never wait.
        let end = bowline_core::time::Now(0).plus(self.limits.load().first_list_wait);
        if now < end {
            let _ = tokio::time::timeout(now.until(end), all).await;
        }
    }

    /// Whether it takes no more calls and goes down.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.path.closing.load(Ordering::Relaxed)
    }

    /// Gives a server an order and waits, but not long, for what comes of it.
    pub async fn order(
        &self,
        name: &str,
        order: Order,
        wait: Duration,
    ) -> Result<ServerStatus, CallError> {
        let server = self.server(name)?;
        let settled = async {
            // The sender lives as long as the supervisor does.
            let _ = server.state().wait_for(|state| state.is_settled()).await;
            Ok(())
        };
        let outcome = match order {
            // Calls in flight may take long to end; the order is given all the same.
            Order::Reload => {
                let all = async {
                    server.order(order).await?;
                    settled.await
                };
                tokio::time::timeout(wait, all).await
            }
            Order::Start | Order::Stop | Order::Restart => {
                server.order(order).await?;
                tokio::time::timeout(wait, settled).await
            }
        };
        outcome.unwrap_or(Ok(()))?;
        self.status_of(&server.spec().name)
    }

    /// Takes no more calls and stops every server, all at once; waits for their end, but not long.
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
    /// host.shutdown().await;
    /// let refused = host.call_tool(&owner, "clock", "now", json!({})).await.unwrap_err();
    /// assert_eq!(refused.to_string(), "the gateway is shutting down");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn shutdown(&self) {
        self.path.closing.store(true, Ordering::Relaxed);
        self.path.outbox.close().await;
        self.around.events.end();
        self.standing.close();
        // No configuration comes into force from here on.
        let servers = {
            let _turn = lock(&self.turn);
            self.path.servers.swap(Arc::new(Servers::default()))
        };
        let mut servers: Vec<_> = servers.values().cloned().collect();
        servers.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        let stops = servers
            .into_iter()
            .map(|server| async move { server.order(Order::Stop).await });
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
        // Last: calls that were let in before may have been charged until here.
        self.path.purse.close().await;
    }
}
