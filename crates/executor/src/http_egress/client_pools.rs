//! HTTP clients of an executor: separate connections for each server of a gateway.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_link::http::http_client::HttpClient;
use bowline_link::http::http1::{EgressPolicy, Http1Client, HttpClientLimits};

use crate::offer::{EgressRules, ExecutorOffer};

/// Servers with a cached client.
const CLIENTS_MAX: usize = 256;

/// One client per server, so that servers never share a connection.
#[derive(Debug)]
pub(super) struct ClientPools {
    limits: HttpClientLimits,
    allowed: EgressRules,
    clients: Mutex<HashMap<Arc<str>, Arc<Http1Client>>>,
}

impl ClientPools {
    pub(super) fn new(offer: &ExecutorOffer) -> Self {
        Self {
            limits: offer.limits.client,
            allowed: offer.egress.clone(),
            clients: Mutex::default(),
        }
    }

    /// Returns the client for a server.
    pub(super) fn client_for(&self, server: &Arc<str>) -> Option<Arc<dyn HttpClient>> {
        let mut clients = lock(&self.clients);
        if let Some(client) = clients.get(server) {
            return Some(Arc::clone(client) as Arc<dyn HttpClient>);
        }
        if clients.len() >= CLIENTS_MAX
            && let Some(other) = clients.keys().next().cloned()
        {
            clients.remove(&other);
        }
        // With too many rules, nothing is allowed.
        let policy = EgressPolicy::new(Arc::new(
            self.allowed.egress_for(server).unwrap_or_default(),
        ));
        let client = Arc::new(Http1Client::with_egress(self.limits, policy).ok()?);
        clients.insert(Arc::clone(server), Arc::clone(&client));
        Some(client)
    }

    /// Closes idle connections.
    pub(super) fn close_idle(&self) {
        let clients: Vec<_> = lock(&self.clients).values().cloned().collect();
        for client in clients {
            client.close_idle();
        }
    }
}
