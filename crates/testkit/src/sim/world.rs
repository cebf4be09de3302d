//! The servers of one test, with access to running instances.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bowline_core::error::CallError;
use bowline_host::manifest::NullManifestStore;
use bowline_host::pins::NullPinStore;
use bowline_host::ports::{NotificationSink, NullSink};
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_link::{LinkEvent, LinkExit};
use bowline_runtime::{SystemClock, TaskTracker};

use crate::sim::history::HistoryEvent;
use crate::sim::scripted_dial::ScriptedDial;
use crate::sim::scripted_link::ScriptedLink;
use crate::sim::server_script::{GenerationScript, ServerScript};
use crate::sim::sim_ledger::{SimLedger, SimRecord};

/// The scripted servers of one test. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SimWorld {
    servers: Arc<Mutex<BTreeMap<Arc<str>, ScriptedServer>>>,
    ledger: SimLedger,
}

#[derive(Debug)]
struct ScriptedServer {
    script: ServerScript,
    /// Number of starts.
    starts: u64,
    /// The latest link, while in use.
    link: Weak<ScriptedLink>,
}

impl SimWorld {
    /// Returns a world of these servers.
    #[must_use]
    pub fn new<'a>(scripts: impl IntoIterator<Item = (&'a str, ServerScript)>) -> Self {
        let servers = scripts.into_iter().map(|(name, script)| {
            let scripted = ScriptedServer {
                script,
                starts: 0,
                link: Weak::new(),
            };
            (Arc::from(name), scripted)
        });
        Self {
            servers: Arc::new(Mutex::new(servers.collect())),
            ledger: SimLedger::default(),
        }
    }

    /// Starts a host for `specs`, in test time.
    #[must_use]
    pub fn start_host(&self, specs: Vec<ServerSpec>, limits: HostLimits) -> Host {
        self.start_host_with_sink(specs, limits, Arc::new(NullSink))
    }

    /// The same with a sink for notifications outside calls.
    #[must_use]
    pub fn start_host_with_sink(
        &self,
        specs: Vec<ServerSpec>,
        limits: HostLimits,
        audience: Arc<dyn NotificationSink>,
    ) -> Host {
        let ports = HostPorts {
            notifications: audience,
            ..self.ports()
        };
        Host::start(specs, limits, ports)
    }

    /// Returns ports without persistence and notifications.
    #[must_use]
    pub fn ports(&self) -> HostPorts {
        HostPorts {
            dial: Arc::new(ScriptedDial::new(self.clone())),
            clock: Arc::new(SystemClock::start()),
            tasks: TaskTracker::default(),
            notifications: Arc::new(NullSink),
            manifests: Arc::new(NullManifestStore),
            pins: Arc::new(NullPinStore),
            journal: Arc::new(bowline_journal::MemoryJournal::default()),
            audit: Arc::new(bowline_host::audit::NullAuditSink),
            keys: bowline_core::lane::KeyScope::default(),
        }
    }

    /// Emits an event of a running server; returns `false` if not running.
    #[must_use]
    pub fn emit(&self, server: &str, event: LinkEvent) -> bool {
        self.latest_link(server)
            .is_some_and(|link| link.emit(event))
    }

    /// Returns the current record.
    #[must_use]
    pub fn record(&self) -> SimRecord {
        self.ledger.record()
    }

    /// Borrows the current record.
    pub fn with_record<T>(&self, at: impl FnOnce(&SimRecord) -> T) -> T {
        self.ledger.with_record(at)
    }

    /// Records an event of the test.
    pub fn record_event(&self, event: HistoryEvent) {
        self.ledger.record_event(event);
    }

    /// Gives an operator's order, and records the order and its acceptance.
    pub async fn give_order(
        &self,
        host: &Host,
        server: &str,
        order: ServerAction,
    ) -> Result<(), CallError> {
        let supervisor = host.server(server)?;
        let server: Arc<str> = server.into();
        self.record_event(HistoryEvent::OrderGiven {
            server: Arc::clone(&server),
            order,
        });
        supervisor.apply_action(order).await?;
        self.record_event(HistoryEvent::OrderAccepted { server, order });
        Ok(())
    }

    /// Waits until the record satisfies `wanted`. See [`SimLedger::wait_until`].
    pub async fn wait_until(&self, condition: impl FnMut(&SimRecord) -> bool + Send) -> SimRecord {
        self.ledger.wait_until(condition).await
    }

    /// Returns the latest link of a server, if still up.
    #[must_use]
    pub fn latest_link(&self, server: &str) -> Option<Arc<ScriptedLink>> {
        self.lock_servers().get(server)?.link.upgrade()
    }

    /// Ends a server as if by itself; returns `false` if not running.
    pub fn kill(&self, server: &str, exit: LinkExit) -> bool {
        self.latest_link(server)
            .map(|link| link.exit_with(exit))
            .is_some()
    }

    /// Replaces the script of a running server and emits a list change; returns `false` if not
    /// running.
    pub fn change_script(&self, server: &str, script: GenerationScript) -> bool {
        self.latest_link(server).is_some_and(|link| {
            link.set_script(script);
            link.emit(LinkEvent::ToolsChanged)
        })
    }

    pub(crate) const fn ledger(&self) -> &SimLedger {
        &self.ledger
    }

    /// Counts a start and returns its number and script.
    pub(crate) fn begin_start(&self, server: &str) -> Option<(u64, GenerationScript)> {
        let mut servers = self.lock_servers();
        let scripted = servers.get_mut(server)?;
        scripted.starts += 1;
        let nth = scripted.starts;
        Some((nth, scripted.script.generation(nth).clone()))
    }

    pub(crate) fn set_link(&self, server: &str, link: &Arc<ScriptedLink>) {
        if let Some(scripted) = self.lock_servers().get_mut(server) {
            scripted.link = Arc::downgrade(link);
        }
    }

    fn lock_servers(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, ScriptedServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
