//! Puts a host together.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use bowline_link::stderr::Stamps;
use tokio::sync::Semaphore;

use super::views::Views;
use super::{Host, HostLimits, Ports, apply};
use crate::audience::Hall;
use crate::callpath::audited::Auditor;
use crate::callpath::cached::Answers;
use crate::callpath::charge::Purse;
use crate::callpath::checked::Checker;
use crate::callpath::seat::SeatTable;
use crate::callpath::{CallPath, Servers};
use crate::catalog::CatalogStore;
use crate::decide::Decider;
use crate::denials::Denials;
use crate::events::Events;
use crate::inprocess::Beside;
use crate::memory::Memory;
use crate::outbox::Outbox;
use crate::pins::Pins;
use crate::ports::Audience;
use crate::spec::ServerSpec;
use crate::standing::Standing;
use crate::supervisor::{Supervisor, Surroundings};

impl Host {
    /// Takes `specs` into care and starts those that are not lazy, in the background; queued writes
    /// go out under the policy of that moment, so another is set before anything is awaited.
    #[must_use]
    pub fn start(specs: Vec<ServerSpec>, limits: HostLimits, ports: Ports) -> Self {
        let events = Events::new(Arc::clone(&ports.clock));
        Self::start_telling(specs, limits, ports, events)
    }

    /// The same, with a teller of what happens that others tell as well.
    #[must_use]
    pub fn start_telling(
        specs: Vec<ServerSpec>,
        limits: HostLimits,
        ports: Ports,
        events: Events,
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
        } = ports;
        let catalog = Arc::new(CatalogStore::default());
        let decider = Arc::new(Decider::new(Denials::new(events.clone())));
        let memory = Arc::new(Memory::new(Arc::clone(&decider)));
        let answers = Arc::new(Answers::new(limits.cache, Arc::clone(&clock)));
        let hall = Arc::new(Hall::new(audience));
        let around = Surroundings {
            dial: Arc::new(Beside::new(dial, &clock, &tasks)),
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
        around.pins.know(&specs);
        let wall = Arc::clone(&clock);
        let stamps = Stamps::new(move || wall.unix_ms());
        let servers: Servers = specs
            .into_iter()
            .map(|spec| {
                let (name, log) = (Arc::clone(&spec.name), apply::new_log(&spec, &stamps));
                (name, Supervisor::start(spec, log, &around))
            })
            .collect();
        events.follow(catalog.changes(), &tasks);
        let outbox = Outbox::new(journal, &audit, &around, &hall);
        let standing = Standing::new(Arc::clone(&memory), Arc::clone(&clock), tasks);
        let path = CallPath {
            catalog,
            memory,
            decider,
            purse: Purse::default(),
            answers,
            outbox,
            checker: Checker::default(),
            auditor: Auditor::new(audit, Arc::clone(&clock)),
            seats: SeatTable::new(limits.principal_calls_max),
            servers: ArcSwap::from_pointee(servers),
            clock,
            closing: AtomicBool::new(false),
        };
        let path = Arc::new(path);
        path.outbox.start(Arc::downgrade(&path));
        Self {
            path,
            standing,
            around,
            limits: Arc::new(ArcSwap::from_pointee(limits)),
            stamps,
            measuring: Arc::new(Semaphore::new(1)),
            turn: Arc::default(),
            views: Arc::new(Views::default()),
            hall,
        }
    }
}
