//! Which definitions of tools were approved, and what becomes of those that are others now.

use std::fmt;
use std::sync::Arc;

/// What happens to a tool whose definition is not the approved one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinMode {
    /// Nothing is remembered.
    Off,
    /// It is marked and told of.
    #[default]
    Warn,
    /// It is withdrawn until a person accepts it.
    Block,
}

impl PinMode {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Block => "block",
        }
    }
}

/// Keeps pins between lives of the gateway.
pub trait PinStore: fmt::Debug + Send + Sync {}

/// Keeps pins for the life of the host only.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unkept;

impl PinStore for Unkept {}

/// The pins of all servers.
#[derive(Debug)]
pub struct Pins {
    _store: Arc<dyn PinStore>,
}

impl Pins {
    /// Reads what was kept.
    #[must_use]
    pub(crate) fn open(store: Arc<dyn PinStore>) -> Self {
        Self { _store: store }
    }
}
