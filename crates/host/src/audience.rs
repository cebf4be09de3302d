//! Who hears what servers say outside calls: whoever the host was built with, and one gateway
//! that came later.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bowline_core::caller::SessionKey;
use bytes::Bytes;
use thiserror::Error;

use crate::host::Host;
use crate::ports::Audience;

/// Passes on what servers say.
#[derive(Debug)]
pub(crate) struct Hall {
    first: Arc<dyn Audience>,
    later: ArcSwapOption<Arc<dyn Audience>>,
}

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
        }
    }
}

impl Audience for Hall {
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool {
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
