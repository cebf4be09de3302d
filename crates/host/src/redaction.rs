//! Redacts secrets held by the gateway from everything servers send to agents: results, errors,
//! lists, notifications and server requests. The only exception to lossless forwarding.

mod redacting_client;
mod redacting_link;

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_link::LinkConnectError;
use bowline_link::stderr::StderrLog;
use tokio::time::Instant;

use self::redacting_client::RedactingClient;
use self::redacting_link::RedactingLink;
use crate::dial::MissingFeature;
use crate::spec::ServerSpec;
use crate::supervisor::{Dial, DialedLink};

pub use bowline_catalog::result_secrets::ResultSecrets;

/// Wraps links of servers with redaction; events outside calls are redacted on delivery.
#[derive(Debug)]
pub(crate) struct RedactingDial(pub(crate) Arc<dyn Dial>);

impl Dial for RedactingDial {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        let Some(secrets) = &spec.redact_results else {
            return self.0.dial(spec, log, owner, deadline);
        };
        Box::pin(async move {
            let owner = owner.map(|owner| RedactingClient::wrap(owner, secrets));
            let (link, events) = self.0.dial(spec, log, owner, deadline).await?;
            Ok((RedactingLink::wrap(link, secrets), events))
        })
    }

    fn check_transport(&self, spec: &ServerSpec) -> Result<(), MissingFeature> {
        self.0.check_transport(spec)
    }

    fn restore_era(&self, spec: &ServerSpec, era: Era) {
        self.0.restore_era(spec, era);
    }

    fn wait_reachable<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        self.0.wait_reachable(spec)
    }

    fn is_unreachable(&self, spec: &ServerSpec) -> bool {
        self.0.is_unreachable(spec)
    }
}
