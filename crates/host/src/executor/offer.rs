//! What an executor offers: where it may go, which servers it may start, which secrets it has.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::flow::FlowLimits;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::http::hyper_client::ClientLimits;
use bowline_link::stdio::StdioSpec;
use bowline_link::websocket::{Form, SocketLimits};
use bowline_wire::executor::FRAME_BYTES_MAX;
use thiserror::Error;

/// What an executor offers.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What it is called.
    pub name: Arc<str>,
    /// Where requests may go.
    pub egress: Arc<Egress>,
    /// The servers that it can start, by the names that a gateway asks for.
    pub servers: BTreeMap<Arc<str>, StdioSpec>,
    /// What it fills into headers.
    pub secrets: Arc<dyn Secrets>,
    /// Its bounds.
    pub limits: OfferLimits,
}

impl Offer {
    /// Returns an offer of nothing.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            egress: Arc::default(),
            servers: BTreeMap::new(),
            secrets: Arc::new(NoSecrets),
            limits: OfferLimits::default(),
        }
    }
}

/// The bounds of an executor.
#[derive(Clone, Copy, Debug)]
pub struct OfferLimits {
    /// What one connection with a gateway takes on.
    pub flow: FlowLimits,
    /// How connections with servers are made.
    pub client: ClientLimits,
    /// How the connection with a gateway is kept.
    pub socket: SocketLimits,
    /// How long each step of the handshake may take.
    pub step: Duration,
    /// How long a session is kept without a connection.
    pub keep: Duration,
}

impl Default for OfferLimits {
    fn default() -> Self {
        Self {
            flow: FlowLimits::default(),
            client: ClientLimits {
                idle_max: 32,
                ..ClientLimits::default()
            },
            socket: SocketLimits {
                form: Form::Binary,
                message_bytes_max: FRAME_BYTES_MAX,
                queue_bytes_max: 1024 * 1024,
                ..SocketLimits::default()
            },
            step: Duration::from_secs(5),
            keep: Duration::from_secs(30),
        }
    }
}

/// Secrets that stay in the executor: a gateway names them, and never sees them.
pub trait Secrets: fmt::Debug + Send + Sync {
    /// Returns what they are called.
    fn names(&self) -> Vec<Arc<str>>;

    /// Reads one for a request that goes there; asked anew for every request.
    ///
    /// # Errors
    /// There is none for that address.
    fn read(&self, name: &str, to: &Endpoint) -> Result<String, NoSecret>;
}

/// Why there is no secret. Who asks from afar is told only that there is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSecret {
    /// Nothing is called that.
    #[error("there is no such secret")]
    Unknown,
    /// It is not for this address.
    #[error("the secret is not for this address")]
    NotThere,
    /// It cannot be read now.
    #[error("the secret cannot be read: {0}")]
    Unreadable(Arc<str>),
}

/// No secrets.
#[derive(Clone, Copy, Debug)]
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn names(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn read(&self, _: &str, _: &Endpoint) -> Result<String, NoSecret> {
        Err(NoSecret::Unknown)
    }
}

/// Where requests may go; nowhere, unless it is said.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// For every server of the gateway.
    pub allow: Vec<Arc<str>>,
    /// For one of them, beside that.
    pub servers: BTreeMap<Arc<str>, Vec<Arc<str>>>,
}
