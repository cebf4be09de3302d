//! An executor's offer: allowed destinations, startable servers, and secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::egress::{EgressAllowlist, EgressRule, EgressRuleError};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http1::HttpClientLimits;
use bowline_link::stdio::StdioSpec;
use bowline_link::websocket::{MessageFormat, WebSocketLimits};

use crate::flow::FlowLimits;
use crate::frames::FRAME_BYTES_MAX;
use thiserror::Error;

/// An executor's offer.
#[derive(Clone, Debug)]
pub struct ExecutorOffer {
    /// Name of the executor.
    pub name: Arc<str>,
    /// Allowed destinations of requests.
    pub egress: EgressRules,
    /// Startable servers, by the name used by gateways.
    pub servers: BTreeMap<Arc<str>, StdioSpec>,
    /// Secrets for headers.
    pub secrets: Arc<dyn ExecutorSecrets>,
    /// Limits.
    pub limits: ExecutorLimits,
}

impl ExecutorOffer {
    /// Returns an empty offer.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            egress: EgressRules::default(),
            servers: BTreeMap::new(),
            secrets: Arc::new(NoSecrets),
            limits: ExecutorLimits::default(),
        }
    }
}

/// Limits of an executor.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorLimits {
    /// Flow control limits of one gateway connection.
    pub flow: FlowLimits,
    /// Limits of connections to servers.
    pub client: HttpClientLimits,
    /// WebSocket limits of the gateway connection.
    pub socket: WebSocketLimits,
    /// Timeout of each handshake step.
    pub handshake_step: Duration,
    /// How long a session outlives its connection.
    pub session_retention: Duration,
}

impl Default for ExecutorLimits {
    fn default() -> Self {
        Self {
            flow: FlowLimits::default(),
            client: HttpClientLimits {
                idle_max: 32,
                ..HttpClientLimits::default()
            },
            socket: WebSocketLimits {
                format: MessageFormat::Binary,
                message_bytes_max: FRAME_BYTES_MAX,
                queue_bytes_max: 1024 * 1024,
                ..WebSocketLimits::default()
            },
            handshake_step: Duration::from_secs(5),
            session_retention: Duration::from_secs(30),
        }
    }
}

/// Secrets that stay in the executor: a gateway uses a secret by name and never sees the value.
pub trait ExecutorSecrets: fmt::Debug + Send + Sync {
    /// Returns the names of the secrets.
    fn names(&self) -> Vec<Arc<str>>;

    /// Reads a secret for a request to `to`; called again for every request.
    ///
    /// # Errors
    /// No such secret for this address.
    fn read(&self, name: &str, to: &HttpEndpoint) -> Result<String, SecretError>;
}

/// Why a secret is unavailable. A remote caller learns no details.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SecretError {
    /// No secret has this name.
    #[error("there is no such secret")]
    Unknown,
    /// The secret is not for this address.
    #[error("the secret is not for this address")]
    NotForAddress,
    /// The secret cannot be read now.
    #[error("the secret cannot be read: {0}")]
    Unreadable(Arc<str>),
}

/// Empty set of secrets.
#[derive(Clone, Copy, Debug)]
pub struct NoSecrets;

impl ExecutorSecrets for NoSecrets {
    fn names(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn read(&self, _: &str, _: &HttpEndpoint) -> Result<String, SecretError> {
        Err(SecretError::Unknown)
    }
}

/// Allowed destinations of requests; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRules {
    /// Rules for every server of the gateway.
    pub all: Vec<EgressRule>,
    /// Additional rules per server, by the gateway's server name.
    pub servers: BTreeMap<Arc<str>, Vec<EgressRule>>,
}

impl EgressRules {
    /// Returns the allow-list for one server of the gateway.
    ///
    /// # Errors
    /// Too many rules.
    pub fn egress_for(&self, server: &str) -> Result<EgressAllowlist, EgressRuleError> {
        let own = self.servers.get(server).into_iter().flatten();
        EgressAllowlist::new(self.all.iter().chain(own).cloned().collect())
    }
}
