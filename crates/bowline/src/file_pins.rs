//! Approved definitions of tools, stored in files of the state directory.

mod pin_file;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bowline_core::BoxFuture;
use bowline_core::error::display_chain;
use bowline_core::pins::ServerPins;
use bowline_core::sync::lock;
use bowline_host::pins::{PinStore, PinStoreError};

use self::pin_file::PinFile;
use bowline_config::state::{self, StateDir, private_file};

/// Maximum size of a pin file.
const PINS_BYTES_MAX: u64 = 96 * 1024 * 1024;

/// Stores the pins of each server in `pins/NAME.json` of the state directory.
#[derive(Clone, Debug)]
pub struct FilePins(Arc<PinDirectory>);

#[derive(Debug)]
struct PinDirectory {
    directory: PathBuf,
    /// Serializes writes and holds the order number last written for each server.
    last_orders: Mutex<HashMap<String, u64>>,
    /// Counts save requests.
    next_order: Mutex<u64>,
}

impl FilePins {
    /// Opens the directory inside `state`, creating it when missing.
    ///
    /// # Errors
    /// The directory belongs to another user, is accessible to others, or is no directory.
    pub fn open(state: &StateDir) -> Result<Self, state::StateError> {
        Ok(Self(Arc::new(PinDirectory {
            directory: state.open_subdirectory("pins")?,
            last_orders: Mutex::default(),
            next_order: Mutex::default(),
        })))
    }
}

impl PinStore for FilePins {
    fn load(&self, server: &str) -> Result<Option<ServerPins>, PinStoreError> {
        let path = private_file::server_file_path(&self.0.directory, server);
        let path = path.ok_or_else(|| unreadable_error(&"an odd name"))?;
        let bytes = private_file::read_private(&path, PINS_BYTES_MAX);
        let Some(bytes) = bytes.map_err(|error| unreadable_error(&display_chain(&error)))? else {
            return Ok(None);
        };
        let pins = PinFile::decode(&bytes).and_then(|record| record.to_pins(server));
        pins.map(Some)
            .ok_or_else(|| unreadable_error(&format!("{} is not what was written", path.display())))
    }

    fn save<'a>(
        &'a self,
        server: &'a str,
        pins: Arc<ServerPins>,
    ) -> BoxFuture<'a, Result<(), PinStoreError>> {
        let order = {
            let mut orders = lock(&self.0.next_order);
            *orders += 1;
            *orders
        };
        Box::pin(async move {
            let (store, server) = (Arc::clone(&self.0), server.to_owned());
            let written =
                tokio::task::spawn_blocking(move || store.write_pins(&server, &pins, order));
            match written.await {
                Ok(written) => written.map_err(|reason| PinStoreError::Unsaved(reason.into())),
                Err(_) => Err(PinStoreError::Unsaved("it is going down".into())),
            }
        })
    }
}

impl PinDirectory {
    fn write_pins(&self, server: &str, pins: &ServerPins, order: u64) -> Result<(), String> {
        let path = private_file::server_file_path(&self.directory, server).ok_or("an odd name")?;
        let bytes = PinFile::encode(server, pins).ok_or("it cannot be written down")?;
        if bytes.len() as u64 > PINS_BYTES_MAX {
            return Err("it is too much".to_owned());
        }
        let mut writing = lock(&self.last_orders);
        let last = writing.entry(server.to_owned()).or_default();
        // A delayed save must not overwrite a later one.
        if *last > order {
            return Ok(());
        }
        private_file::replace_file(&path, &bytes).map_err(|error| display_chain(&error))?;
        *last = order;
        Ok(())
    }
}

fn unreadable_error(reason: &impl ToString) -> PinStoreError {
    PinStoreError::Unreadable(reason.to_string().into())
}
