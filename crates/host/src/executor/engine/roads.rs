//! How requests leave: for each server of a gateway with connections of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_link::http::client::HttpClient;
use bowline_link::http::hyper_client::{ClientLimits, Gate, HyperClient};

use crate::executor::offer::{Allowed, Offer};

/// Servers of gateways whose connections are kept.
const ROADS_MAX: usize = 256;

/// A client for each server, so that a connection of one never serves another.
#[derive(Debug)]
pub(super) struct Roads {
    limits: ClientLimits,
    allowed: Allowed,
    clients: Mutex<HashMap<Arc<str>, Arc<HyperClient>>>,
}

impl Roads {
    pub(super) fn new(offer: &Offer) -> Self {
        Self {
            limits: offer.limits.client,
            allowed: offer.egress.clone(),
            clients: Mutex::default(),
        }
    }

    /// Returns how requests for this server leave.
    pub(super) fn of(&self, server: &Arc<str>) -> Option<Arc<dyn HttpClient>> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(server) {
            return Some(Arc::clone(client) as Arc<dyn HttpClient>);
        }
        if clients.len() >= ROADS_MAX
            && let Some(other) = clients.keys().next().cloned()
        {
            clients.remove(&other);
        }
        // With more rules than can be, nothing is allowed.
        let gate = Gate::new(Arc::new(self.allowed.of(server).unwrap_or_default()));
        let client = Arc::new(HyperClient::gated(self.limits, gate).ok()?);
        clients.insert(Arc::clone(server), Arc::clone(&client));
        Some(client)
    }

    /// Lets go of connections that nobody has used for a while.
    pub(super) fn tidy(&self) {
        let clients: Vec<_> = lock(&self.clients).values().cloned().collect();
        for client in clients {
            client.tidy();
        }
    }
}
