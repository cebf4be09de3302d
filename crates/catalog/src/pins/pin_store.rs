//! Storage port of pins across restarts.

use std::fmt;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::pins::ServerPins;
use thiserror::Error;

/// Why pins cannot be loaded or saved.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PinStoreError {
    /// Stored pins exist but cannot be read, or are damaged.
    #[error("the pins cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// Pins cannot be written.
    #[error("the pins cannot be kept: {0}")]
    Unsaved(Arc<str>),
}

/// Stores pins across restarts.
pub trait PinStore: fmt::Debug + Send + Sync {
    /// Returns the stored pins of a server; `None` without any.
    fn load(&self, server: &str) -> Result<Option<ServerPins>, PinStoreError>;

    /// Replaces the stored pins; durable on return.
    fn save<'a>(
        &'a self,
        server: &'a str,
        pins: Arc<ServerPins>,
    ) -> BoxFuture<'a, Result<(), PinStoreError>>;
}

/// Stores nothing: pins live as long as the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullPinStore;

impl PinStore for NullPinStore {
    fn load(&self, _server: &str) -> Result<Option<ServerPins>, PinStoreError> {
        Ok(None)
    }

    fn save<'a>(
        &'a self,
        _server: &'a str,
        _pins: Arc<ServerPins>,
    ) -> BoxFuture<'a, Result<(), PinStoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
