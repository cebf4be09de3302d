//! Who hears what servers say outside calls: whoever the host was built with, one gateway that
//! came later, and visitors from a hub.

use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;
use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bytes::Bytes;
use thiserror::Error;

use crate::host::Host;
use crate::ports::Audience;

/// Passes on what servers say.
#[derive(Debug)]
pub(crate) struct Hall {
    first: Arc<dyn Audience>,
    later: ArcSwapOption<Arc<dyn Audience>>,
    /// Held weakly: visitors hold the host.
    visitors: Mutex<Option<Weak<dyn Audience>>>,
}

/// The keys of visitors' sessions begin here, so that none is also that of a client.
pub(crate) const VISITORS_FROM: u64 = 1 << 63;

/// An audience that came later; dropped, it leaves.
#[derive(Debug)]
pub struct Attached {
    hall: Arc<Hall>,
}

/// Somebody serves this host already: two gateways would take their sessions for each other's.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the host is served by another gateway already")]
pub struct Occupied;

impl Hall {
    pub(crate) fn new(first: Arc<dyn Audience>) -> Self {
        Self {
            first,
            later: ArcSwapOption::empty(),
            visitors: Mutex::default(),
        }
    }
}

impl Audience for Hall {
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool {
        if session.0 >= VISITORS_FROM {
            let visitors = lock(&self.visitors).as_ref().and_then(Weak::upgrade);
            return visitors.is_some_and(|visitors| visitors.tell(session, notification));
        }
        let later = self.later.load();
        match later.as_ref() {
            Some(later) if later.tell(session, notification.clone()) => true,
            _ => self.first.tell(session, notification),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.hall.later.store(None);
    }
}

impl Host {
    /// Lets visitors hear what servers say outside calls, in place of those who came before.
    pub(crate) fn admit_visitors(&self, visitors: &Arc<dyn Audience>) {
        *lock(&self.hall().visitors) = Some(Arc::downgrade(visitors));
    }

    /// Lets the sessions of a gateway hear what servers say outside calls.
    ///
    /// # Errors
    /// Those of another gateway do already.
    pub fn attach(&self, audience: Arc<dyn Audience>) -> Result<Attached, Occupied> {
        let hall = Arc::clone(self.hall());
        let none: Option<Arc<Arc<dyn Audience>>> = None;
        let before = hall.later.compare_and_swap(&none, Some(Arc::new(audience)));
        match before.as_ref() {
            Some(_) => Err(Occupied),
            None => {
                drop(before);
                Ok(Attached { hall })
            }
        }
    }
}
