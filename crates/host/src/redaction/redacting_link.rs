//! A link with redacted responses.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::client_handle::SessionKey;
use bowline_core::era::Era;
use bowline_link::{Link, LinkError, LinkExit, LinkRequest, ProcessSet, ServerInfo};
use tokio::time::Instant;

use super::ResultSecrets;
use super::redacting_client::RedactingClient;

/// Forwards to a server's link and redacts responses.
#[derive(Debug)]
pub(super) struct RedactingLink {
    link: Arc<dyn Link>,
    secrets: Arc<ResultSecrets>,
    /// Server info, redacted.
    server: ServerInfo,
}

impl RedactingLink {
    pub(super) fn wrap(link: Arc<dyn Link>, secrets: &Arc<ResultSecrets>) -> Arc<dyn Link> {
        let server = link.server_info();
        let server = ServerInfo {
            initialize: secrets.redact(server.initialize.clone()),
            ..server.clone()
        };
        Arc::new(Self {
            secrets: Arc::clone(secrets),
            server,
            link,
        })
    }
}

impl Link for RedactingLink {
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        if self.secrets.is_empty() {
            return self.link.request(request);
        }
        let caller = request
            .caller
            .map(|one| RedactingClient::wrap(one, &self.secrets));
        let response = self.link.request(LinkRequest { caller, ..request });
        Box::pin(async move {
            let link_response = response.await?;
            // The id before the body belongs to the caller.
            let (bytes, body_at) = self
                .secrets
                .redact_part(link_response.bytes, link_response.body_at);
            Ok(ServerResponse {
                bytes,
                body_at,
                ..link_response
            })
        })
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        self.link.notify(method, params)
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        self.link.wait_closed()
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        self.link.close()
    }

    fn pid(&self) -> Option<u32> {
        self.link.pid()
    }

    fn processes(&self) -> Option<ProcessSet> {
        self.link.processes()
    }

    fn on_session_ended(&self, session: SessionKey) {
        self.link.on_session_ended(session);
    }

    fn on_roots_changed(&self, session: SessionKey) {
        self.link.on_roots_changed(session);
    }

    fn in_flight(&self) -> usize {
        self.link.in_flight()
    }

    fn server_info(&self) -> &ServerInfo {
        &self.server
    }

    fn era(&self) -> Era {
        self.link.era()
    }

    fn subscribe_resources(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        self.link.subscribe_resources(uris, deadline)
    }
}
