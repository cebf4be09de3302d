//! Starts the broker: the hub that peers meet, and the engine that answers what they ask of it.

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_core::mailbox::HUB;
use bowline_host::Host;
use bowline_host::broker::{
    HostBackend, Hub, HubLimits, HubOptions, Ledger, Rights, ServeLimits, Serving, Takes,
    WORKER_KEEP,
};
use bowline_journal::JournalError;

use crate::config::{BrokerConfig, PeerConfig, PolicyConfig};
use crate::telemetry::Tracer;
use crate::tokens::Tokens;

/// Starts the hub of a host, in the journal of that host.
pub(crate) fn start(
    host: &Host,
    config: &BrokerConfig,
    tokens: &Arc<Tokens>,
    tracer: Tracer,
) -> Result<Hub, JournalError> {
    let journal = Arc::clone(host.outbox().journal());
    let backend = HostBackend::new(host.clone())
        .heeding(Arc::clone(tokens) as _)
        .traced(Arc::new(tracer));
    let serving = Serving::new(
        Arc::new(backend),
        Ledger::new(Arc::clone(&journal), HUB)?,
        ServeLimits::default(),
        Arc::clone(host.clock()),
    );
    // What workers offer is served here like servers of our own.
    let takes = Arc::new(Takes::new(host, WORKER_KEEP));
    let options = HubOptions {
        limits: limits(config),
        offers: takes,
        aliases: config.aliases.iter().map(Arc::clone).collect(),
    };
    Ok(Hub::with_options(host, journal, Arc::new(serving), options))
}

/// Brings back the servers of workers that were there when the gateway last went down, as far as
/// the configuration of now lets them.
pub(crate) async fn restore(hub: &Hub, policy: &PolicyConfig) {
    let rights = |principal: &Principal| match principal.role {
        Role::Owner => Some(Rights::default()),
        _ => policy.peers.get(&principal.name).map(PeerConfig::rights),
    };
    if let Err(error) = hub.restore_offers(rights).await {
        tracing::error!(%error, "what workers offered cannot be read");
    }
}

fn limits(config: &BrokerConfig) -> HubLimits {
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
    fn what_the_file_leaves_out_is_what_a_hub_does_by_itself() {
        let (own, ours) = (HubLimits::default(), limits(&BrokerConfig::default()));
        assert_eq!(format!("{own:?}"), format!("{ours:?}"));
    }
}
