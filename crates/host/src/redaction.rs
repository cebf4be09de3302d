//! Redacts secrets held by the gateway from everything servers send to agents: results, errors,
//! lists, notifications and server requests. The only exception to lossless forwarding.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_core::task_table::TaskRecord;
use bowline_link::stderr::StderrLog;
use bowline_link::{
    Link, LinkConnectError, LinkError, LinkExit, LinkRequest, ProcessSet, ServerInfo,
};
use bytes::Bytes;
use tokio::time::Instant;

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

/// Forwards to the client; redacts notifications and server requests.
#[derive(Debug)]
struct RedactingClient {
    caller: Arc<dyn ClientHandle>,
    secrets: Arc<ResultSecrets>,
}

impl RedactingClient {
    fn wrap(caller: Arc<dyn ClientHandle>, secrets: &Arc<ResultSecrets>) -> Arc<dyn ClientHandle> {
        let secrets = Arc::clone(secrets);
        Arc::new(Self { caller, secrets })
    }
}

impl ClientHandle for RedactingClient {
    fn session(&self) -> SessionKey {
        self.caller.session()
    }

    fn durable_id(&self) -> Option<u64> {
        self.caller.durable_id()
    }

    fn capabilities(&self) -> ClientCapabilities {
        self.caller.capabilities()
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.caller.log_level()
    }

    fn notify(&self, notification: Bytes) {
        self.caller.notify(self.secrets.redact(notification));
    }

    fn request(&self, mut server_request: ServerRequest) -> Option<ServerRequestId> {
        // The id stays unchanged: the server matches the response by it.
        let behind = server_request.id_at.end..server_request.request.len();
        let request = std::mem::take(&mut server_request.request);
        let (request, _) = self.secrets.redact_part(request, behind);
        let (request, before) = self
            .secrets
            .redact_part(request, 0..server_request.id_at.start);
        let length = server_request.id_at.len();
        server_request.id_at = before.end..before.end + length;
        server_request.request = request;
        self.caller.request(server_request)
    }

    fn note_missing_capability(&self, capability: ClientCapability) {
        self.caller.note_missing_capability(capability);
    }

    fn answers_by_retry(&self) -> bool {
        self.caller.answers_by_retry()
    }

    fn cancel_request(&self, id: ServerRequestId) {
        self.caller.cancel_request(id);
    }

    fn on_task_created(&self, task: &TaskRecord) {
        self.caller.on_task_created(task);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Self::wrap(self.caller.session_handle(), &self.secrets)
    }
}

/// Forwards to a server's link and redacts responses.
#[derive(Debug)]
struct RedactingLink {
    link: Arc<dyn Link>,
    secrets: Arc<ResultSecrets>,
    /// Server info, redacted.
    server: ServerInfo,
}

impl RedactingLink {
    fn wrap(link: Arc<dyn Link>, secrets: &Arc<ResultSecrets>) -> Arc<dyn Link> {
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
    fn request(
        &self,
        mut request: LinkRequest,
    ) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        if self.secrets.is_empty() {
            return self.link.request(request);
        }
        let client = request.message.client.take();
        request.message.client = client.map(|one| RedactingClient::wrap(one, &self.secrets));
        let response = self.link.request(request);
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
