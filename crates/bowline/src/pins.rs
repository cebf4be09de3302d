//! Which definitions of tools were approved, kept in files of the state directory.

pub(crate) mod diff;
mod record;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bowline_core::error::whole;
use bowline_core::pins::Pins;
use bowline_core::sync::lock;
use bowline_host::pins::{PinStore, StoreError};
use bowline_link::BoxFuture;

use self::record::Sealed;
pub(crate) use self::record::read_hash;
use crate::state::{self, State, file};

/// The largest file that is written or read.
const PINS_BYTES_MAX: u64 = 96 * 1024 * 1024;

/// Keeps the pins of each server in `pins/NAME.json` of the state directory.
#[derive(Clone, Debug)]
pub struct FilePins(Arc<Store>);

#[derive(Debug)]
struct Store {
    directory: PathBuf,
    /// Who writes, and how often which server was told to be written.
    writing: Mutex<HashMap<String, u64>>,
    /// How often it was told to write at all.
    orders: Mutex<u64>,
}

impl FilePins {
    /// Opens the directory inside `state`, making it when it is missing.
    ///
    /// # Errors
    /// When it belongs to somebody else, is open to others, or is none.
    pub fn open(state: &State) -> Result<Self, state::Error> {
        Ok(Self(Arc::new(Store {
            directory: state.directory("pins")?,
            writing: Mutex::default(),
            orders: Mutex::default(),
        })))
    }
}

impl PinStore for FilePins {
    fn load(&self, server: &str) -> Result<Option<Pins>, StoreError> {
        let path = file::of_server(&self.0.directory, server);
        let path = path.ok_or_else(|| unreadable(&"an odd name"))?;
        let bytes = file::read_private(&path, PINS_BYTES_MAX);
        let Some(bytes) = bytes.map_err(|error| unreadable(&whole(&error)))? else {
            return Ok(None);
        };
        let pins = Sealed::read(&bytes).and_then(|record| record.pins(server));
        pins.map(Some)
            .ok_or_else(|| unreadable(&format!("{} is not what was written", path.display())))
    }

    fn save<'a>(
        &'a self,
        server: &'a str,
        pins: Arc<Pins>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let order = {
            let mut orders = lock(&self.0.orders);
            *orders += 1;
            *orders
        };
        Box::pin(async move {
            let (store, server) = (Arc::clone(&self.0), server.to_owned());
            let written = tokio::task::spawn_blocking(move || store.write(&server, &pins, order));
            match written.await {
                Ok(written) => written.map_err(|reason| StoreError::Unsaved(reason.into())),
                Err(_) => Err(StoreError::Unsaved("it is going down".into())),
            }
        })
    }
}

impl Store {
    fn write(&self, server: &str, pins: &Pins, order: u64) -> Result<(), String> {
        let path = file::of_server(&self.directory, server).ok_or("an odd name")?;
        let bytes = Sealed::write(server, pins).ok_or("it cannot be written down")?;
        if bytes.len() as u64 > PINS_BYTES_MAX {
            return Err("it is too much".to_owned());
        }
        let mut writing = lock(&self.writing);
        let last = writing.entry(server.to_owned()).or_default();
        // One that waited longer than its owner must not undo what came after it.
        if *last > order {
            return Ok(());
        }
        file::replace(&path, &bytes).map_err(|error| whole(&error))?;
        *last = order;
        Ok(())
    }
}

fn unreadable(reason: &impl ToString) -> StoreError {
    StoreError::Unreadable(reason.to_string().into())
}
