//! Writes that callers wait for, one at a time for each key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_journal::Lane;
use tokio::sync::watch;

use super::Shared;

/// Names a write: its lane and its name there.
pub(super) type Name = (Lane, Arc<str>);

/// Those under way; as many as calls are in flight.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Name, watch::Sender<()>>>);

/// The right to be the only one with this key; dropped, it is another's turn.
#[derive(Debug)]
pub(super) struct Flight {
    shared: Arc<Shared>,
    name: Name,
}

impl Flights {
    /// Waits until nobody else carries a write of this name.
    pub(super) async fn take(shared: &Arc<Shared>, name: Name) -> Flight {
        loop {
            let mut other = {
                let mut flights = lock(&shared.flights.0);
                match flights.get(&name) {
                    Some(other) => other.subscribe(),
                    None => {
                        flights.insert(name.clone(), watch::Sender::new(()));
                        let shared = Arc::clone(shared);
                        return Flight { shared, name };
                    }
                }
            };
            // Ends when the other is dropped: that is the only news there is.
            while other.changed().await.is_ok() {}
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        lock(&self.shared.flights.0).remove(&self.name);
    }
}
