//! The surroundings of a supervisor: the parts of the host that every server shares.

use std::sync::Arc;

use bowline_core::tasks::LinkKey;
use bowline_link::LinkEvent;
use tokio::sync::Semaphore;

use super::{Dial, Shared, said};
use crate::callpath::cached::Answers;
use crate::catalog::CatalogStore;
use crate::events::Events;
use crate::manifest::Manifests;
use crate::memory::Memory;
use crate::pins::Pins;
use crate::ports::{Audience, Clock};
use crate::tasks::Tasks;

/// What a supervisor needs from its surroundings.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Connects.
    pub dial: Arc<dyn Dial>,
    /// Where the tools go.
    pub catalog: Arc<CatalogStore>,
    /// Where the actor runs.
    pub tasks: Tasks,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Hears what servers say outside calls.
    pub audience: Arc<dyn Audience>,
    /// Knows whom it is for.
    pub memory: Arc<Memory>,
    /// Keeps what servers offered.
    pub manifests: Arc<dyn Manifests>,
    /// Knows which definitions were approved.
    pub pins: Arc<Pins>,
    /// Keeps answers, which are forgotten when their server changes.
    pub answers: Arc<Answers>,
    /// Tells what happens.
    pub events: Events,
    /// Bounds how many servers are started at the same time.
    pub starts: Arc<Semaphore>,
}

impl Surroundings {
    /// Brings on what a server said outside calls.
    pub(super) fn heard(&self, shared: &Shared, link: LinkKey, event: LinkEvent) {
        let event = match &shared.spec.redact_results {
            Some(secrets) => secrets.clean_event(event),
            None => event,
        };
        match event {
            // Nobody can say whose it is, so it is for those who look after the server.
            LinkEvent::Log(message) => shared.log.say(&said::line(&message)),
            event => {
                let from = (&shared.spec.name, link);
                self.memory.heard(self.audience.as_ref(), from, event);
            }
        }
    }
}
