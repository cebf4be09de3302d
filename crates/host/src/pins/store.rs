//! The door to where pins are kept between lives of the gateway.

use std::fmt;
use std::sync::Arc;

use bowline_core::pins::Pins;
use bowline_link::BoxFuture;
use thiserror::Error;

/// Why pins cannot be read or kept.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// There are some, but they cannot be read, or are not what was written.
    #[error("the pins cannot be read: {0}")]
    Unreadable(Arc<str>),
    /// They cannot be written.
    #[error("the pins cannot be kept: {0}")]
    Unsaved(Arc<str>),
}

/// Keeps pins between lives of the gateway.
pub trait PinStore: fmt::Debug + Send + Sync {
    /// Returns what was kept of a server; nothing where there never was any.
    fn load(&self, server: &str) -> Result<Option<Pins>, StoreError>;

    /// Keeps it in place of what was kept before; durable when it returns.
    fn save<'a>(
        &'a self,
        server: &'a str,
        pins: Arc<Pins>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// Keeps pins for the life of the host only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unkept;

impl PinStore for Unkept {
    fn load(&self, _server: &str) -> Result<Option<Pins>, StoreError> {
        Ok(None)
    }

    fn save<'a>(
        &'a self,
        _server: &'a str,
        _pins: Arc<Pins>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
