//! Calls in flight of each principal; a dropped seat is free again.

use std::sync::{Arc, Mutex};

use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_core::seats::{Seats, SeatsView};
use bowline_core::sync::lock;

/// All seats of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct SeatTable(Arc<Mutex<Seats>>);

impl SeatTable {
    pub(crate) fn new(limit: u32) -> Self {
        Self(Arc::new(Mutex::new(Seats::new(limit))))
    }

    pub(crate) fn view(&self) -> SeatsView {
        lock(&self.0).view()
    }

    /// Changes how many each principal has; those that are taken stay so.
    pub(crate) fn allow(&self, limit: u32) {
        lock(&self.0).allow(limit);
    }

    pub(crate) fn take(&self, principal: &Arc<Principal>) -> Result<Seat, CallError> {
        lock(&self.0)
            .take(&principal.name)
            .map_err(|limit| CallError::TooManyCalls {
                principal: Arc::clone(&principal.name),
                limit,
            })?;
        Ok(Seat {
            table: self.clone(),
            principal: Arc::clone(principal),
        })
    }
}

/// One call's place.
#[derive(Debug)]
pub(crate) struct Seat {
    table: SeatTable,
    principal: Arc<Principal>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.table.0).give_back(&self.principal.name);
    }
}
