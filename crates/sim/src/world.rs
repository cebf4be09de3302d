//! All servers of one test, and the hands that reach into them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bowline_core::error::CallError;
use bowline_host::manifest::Forgetful;
use bowline_host::pins::Unkept;
use bowline_host::ports::{Audience, Silent, SystemClock};
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_link::{Exit, LinkEvent};

use crate::dial::ScriptedDial;
use crate::history::Happened;
use crate::ledger::{Ledger, Record};
use crate::link::ScriptedLink;
use crate::script::{Generation, Script};

/// The scripted servers of one test. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct World {
    servers: Arc<Mutex<BTreeMap<Arc<str>, Scripted>>>,
    ledger: Ledger,
}

#[derive(Debug)]
struct Scripted {
    script: Script,
    /// How often it was started.
    starts: u64,
    /// Its latest link, while anybody holds it.
    link: Weak<ScriptedLink>,
}

impl World {
    /// Returns a world of these servers.
    #[must_use]
    pub fn new<'a>(scripts: impl IntoIterator<Item = (&'a str, Script)>) -> Self {
        let servers = scripts.into_iter().map(|(name, script)| {
            let scripted = Scripted {
                script,
                starts: 0,
                link: Weak::new(),
            };
            (Arc::from(name), scripted)
        });
        Self {
            servers: Arc::new(Mutex::new(servers.collect())),
            ledger: Ledger::default(),
        }
    }

    /// Starts a host that has `specs` in care, on the clock of the test.
    #[must_use]
    pub fn host(&self, specs: Vec<ServerSpec>, limits: HostLimits) -> Host {
        self.host_for(specs, limits, Arc::new(Silent))
    }

    /// The same with an audience that hears what servers say outside calls.
    #[must_use]
    pub fn host_for(
        &self,
        specs: Vec<ServerSpec>,
        limits: HostLimits,
        audience: Arc<dyn Audience>,
    ) -> Host {
        let ports = Ports {
            audience,
            ..self.ports()
        };
        Host::start(specs, limits, ports)
    }

    /// Returns the doors of a host of this world that remembers nothing and speaks to nobody.
    #[must_use]
    pub fn ports(&self) -> Ports {
        Ports {
            dial: Arc::new(ScriptedDial::new(self.clone())),
            clock: Arc::new(SystemClock::start()),
            tasks: Tasks::default(),
            audience: Arc::new(Silent),
            manifests: Arc::new(Forgetful),
            pins: Arc::new(Unkept),
            journal: Arc::new(bowline_journal::Memory::default()),
            audit: Arc::new(bowline_host::audit::Unaudited),
            keys: bowline_core::lane::KeyScope::default(),
        }
    }

    /// Lets a running server say something outside calls; `false` when it does not run.
    #[must_use]
    pub fn say(&self, server: &str, event: LinkEvent) -> bool {
        self.link(server).is_some_and(|link| link.say(event))
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.ledger.record()
    }

    /// Looks at what happened so far.
    pub fn look<T>(&self, at: impl FnOnce(&Record) -> T) -> T {
        self.ledger.look(at)
    }

    /// Enters what a test did, among what the servers did.
    pub fn note(&self, what: Happened) {
        self.ledger.enter(what);
    }

    /// Gives an order as a person does, and enters when it was given and when it was taken.
    pub async fn order(&self, host: &Host, server: &str, order: Order) -> Result<(), CallError> {
        let supervisor = host.server(server)?;
        let server: Arc<str> = server.into();
        self.note(Happened::Ordered {
            server: Arc::clone(&server),
            order,
        });
        supervisor.order(order).await?;
        self.note(Happened::Taken { server, order });
        Ok(())
    }

    /// Waits until the record is as `wanted`. See [`Ledger::until`].
    pub async fn until(&self, wanted: impl FnMut(&Record) -> bool + Send) -> Record {
        self.ledger.until(wanted).await
    }

    /// Returns the latest link of a server, if it still stands.
    #[must_use]
    pub fn link(&self, server: &str) -> Option<Arc<ScriptedLink>> {
        self.lock().get(server)?.link.upgrade()
    }

    /// Ends a server as if by itself; `false` when it does not run.
    pub fn kill(&self, server: &str, exit: Exit) -> bool {
        self.link(server).map(|link| link.end(exit)).is_some()
    }

    /// Changes what a running server offers and does, and lets it say so; `false` when it does
    /// not run.
    pub fn change(&self, server: &str, script: Generation) -> bool {
        self.link(server).is_some_and(|link| {
            link.follow(script);
            link.say(LinkEvent::ToolsChanged)
        })
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Counts a start and returns its number and script.
    pub(crate) fn begin(&self, server: &str) -> Option<(u64, Generation)> {
        let mut servers = self.lock();
        let scripted = servers.get_mut(server)?;
        scripted.starts += 1;
        let nth = scripted.starts;
        Some((nth, scripted.script.generation(nth).clone()))
    }

    pub(crate) fn put(&self, server: &str, link: &Arc<ScriptedLink>) {
        if let Some(scripted) = self.lock().get_mut(server) {
            scripted.link = Arc::downgrade(link);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Scripted>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
