//! Starts the broker: the hub for peers and the service for peer requests.

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_host::Host;
use bowline_host::broker::mailbox::HUB;
use bowline_host::broker::{
    AcceptOffers, HostBackend, Hub, HubLimits, HubOptions, PeerRights, RequestLedger, ServeEngine,
    ServeLimits, WORKER_RETENTION,
};
use bowline_journal::JournalError;

use bowline_config::{BrokerConfig, PeerConfig, PolicyConfig};
use bowline_edge::CallTracer;
use bowline_edge::TokenStore;

/// Starts the hub of a host on the host's journal.
pub(crate) fn start_hub(
    host: &Host,
    config: &BrokerConfig,
    tokens: &Arc<TokenStore>,
    tracer: CallTracer,
) -> Result<Hub, JournalError> {
    let journal = Arc::clone(host.outbox().journal());
    let backend = HostBackend::new(host.clone())
        .with_revocations(Arc::clone(tokens) as _)
        .with_tracer(Arc::new(tracer));
    let service = ServeEngine::new(
        Arc::new(backend),
        RequestLedger::new(Arc::clone(&journal), HUB)?,
        ServeLimits::default(),
        Arc::clone(host.clock()),
    );
    // Servers offered by workers are served like the gateway's own servers.
    let accept_offers = Arc::new(AcceptOffers::new(host, WORKER_RETENTION));
    let options = HubOptions {
        limits: hub_limits(config),
        offer_handler: accept_offers,
        aliases: config.aliases.iter().map(Arc::clone).collect(),
    };
    Ok(Hub::with_options(host, journal, Arc::new(service), options))
}

/// Restores the worker servers that were offered when the gateway last stopped, as far as the
/// current configuration permits.
pub(crate) async fn restore_offers(hub: &Hub, policy: &PolicyConfig) {
    let rights = |principal: &Principal| match principal.role {
        Role::Owner => Some(PeerRights::default()),
        _ => policy.peers.get(&principal.name).map(PeerConfig::to_rights),
    };
    if let Err(error) = hub.restore_offers(rights).await {
        tracing::error!(%error, "cannot read stored worker offers");
    }
}

fn hub_limits(config: &BrokerConfig) -> HubLimits {
    HubLimits {
        peers_max: config.peers as usize,
        mailboxes_max: config.mailboxes as usize,
        deliver_per_second: config.deliver_rate,
        deliver_burst: config.deliver_burst,
        requests_max: config.requests as usize,
        deliveries_max: config.attempts,
        ttl: config.ttl,
        ..HubLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_broker_config_equals_hub_defaults() {
        let (own, ours) = (HubLimits::default(), hub_limits(&BrokerConfig::default()));
        assert_eq!(format!("{own:?}"), format!("{ours:?}"));
    }
}
