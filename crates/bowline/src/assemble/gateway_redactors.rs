//! Redactors of the gateway: no secret of any server appears in logs, traces or results.

use std::sync::Arc;

use bowline_core::redact::Redactor;
use bowline_host::redaction::ResultSecrets;
use bowline_host::spec::ServerSpec;

use crate::telemetry::LogRedactor;
use bowline_config::Config;
use bowline_config::state::{OwnerCredential, StateDir};
use bowline_edge::Authenticator;

/// Redactors that cover all servers. Cheap to clone; clones share the secrets.
#[derive(Clone)]
pub(super) struct GatewayRedactors {
    /// Redacts logs and traces.
    pub(super) logs: LogRedactor,
    /// Redacts results of all servers.
    pub(super) results: Arc<ResultSecrets>,
}

impl GatewayRedactors {
    pub(super) fn new(logs: LogRedactor) -> Self {
        Self {
            logs,
            results: Arc::default(),
        }
    }

    /// Redacts the owner token and the secrets of these servers in logs, traces and results from
    /// now on.
    pub(super) fn redact_secrets(
        &self,
        token: &OwnerCredential,
        config: &Config,
        servers: &[ServerSpec],
    ) {
        let owner_token = ("owner token", token.expose());
        let configured = config
            .servers
            .iter()
            .flat_map(|server| server.secrets.certain_secrets());
        self.results
            .replace_configured(configured.chain([owner_token]));
        let server_redactors = servers.iter().map(|server| &*server.secrets);
        let token = Redactor::new([owner_token]);
        self.logs
            .replace_current(&Redactor::from_union(server_redactors.chain([&token])));
    }

    /// Redacts a rotated owner token in logs and results, like the first owner token.
    pub(super) fn redact_rotated_owner_token(
        self,
        authenticator: Authenticator,
        state: &StateDir,
    ) -> Authenticator {
        authenticator.with_owner_file(state.token_file(), move |token| {
            self.logs.add_secret("owner token", token);
            self.results.add_secret("owner token", token);
        })
    }
}
