//! Serves the tools of a host; each sender acts as a principal of the host.

use std::fmt;
use std::sync::Arc;

use bowline_broker::frames::{
    BrokerRequest, BrokerResponse, CallerContext, ManifestItem, MessageSender,
};
use bowline_broker::{
    Backend, BackendRequest, PeerManifest, RemoteSessionGuard, RemoteSessions, build_call,
    build_manifest, failures,
};
use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, CallReply, CallSubject, EndpointScope, Principal, Route};
use bowline_core::error::FailureReport;
use bowline_core::trace::CallTrace;

use super::mcp_requests::{self, HubMcpRequest};
use crate::catalog::{self, NameLookup};
use crate::host::Host;

/// Maps senders to principals on a host that is not the hub: a worker's rules for the hub.
pub trait CallerMapping: fmt::Debug + Send + Sync {
    /// Returns the local principal for a sender named by the hub; `None` if the sender may do
    /// nothing.
    fn map_sender(&self, from: &MessageSender) -> Option<Arc<Principal>>;

    /// Whether a server is offered to peers at all.
    fn is_server_offered(&self, server: &str) -> bool;
}

/// Looks up revoked credentials. A stored request may run long after the connection closed under
/// whose credential the sender stored the request.
pub trait CredentialRevocations: fmt::Debug + Send + Sync {
    /// Whether the credential was revoked; an expired credential is not revoked.
    fn is_revoked(&self, credential: &str) -> bool;
}

/// Places peer requests in traces.
pub trait TracePlacer: fmt::Debug + Send + Sync {
    /// Returns the trace position of a call, given the caller's own: inside a span of this
    /// gateway if the call is recorded.
    fn place_in_trace(&self, caller_trace: Option<CallTrace>) -> Option<Arc<CallTrace>>;
}

/// Serves the tools of a host.
#[derive(Clone, Debug)]
pub struct HostBackend {
    host: Host,
    caller_mapping: Option<Arc<dyn CallerMapping>>,
    revocations: Option<Arc<dyn CredentialRevocations>>,
    remote_sessions: Option<Arc<RemoteSessions>>,
    tracer: Option<Arc<dyn TracePlacer>>,
}

impl HostBackend {
    /// Returns the backend of a hub: each sender is a principal of this host, with the same view as
    /// over MCP.
    #[must_use]
    pub const fn new(host: Host) -> Self {
        Self {
            host,
            caller_mapping: None,
            revocations: None,
            remote_sessions: None,
            tracer: None,
        }
    }

    /// Records spans of peer requests with `tracer`. Without a tracer, the caller's trace context
    /// is passed on unchanged.
    #[must_use]
    pub fn with_tracer(self, tracer: Arc<dyn TracePlacer>) -> Self {
        Self {
            tracer: Some(tracer),
            ..self
        }
    }

    fn call_trace(&self, context: Option<&CallerContext>) -> Option<Arc<CallTrace>> {
        let caller_trace = context.and_then(|context| context.trace.as_deref().cloned());
        match &self.tracer {
            Some(tracer) => tracer.place_in_trace(caller_trace),
            None => caller_trace.map(Arc::new),
        }
    }

    /// Refuses senders whose credential was revoked after the request.
    #[must_use]
    pub fn with_revocations(self, credentials: Arc<dyn CredentialRevocations>) -> Self {
        Self {
            revocations: Some(credentials),
            ..self
        }
    }

    /// Returns the backend of a worker: `mapping` maps each sender to a principal.
    #[must_use]
    pub const fn with_caller_mapping(host: Host, mapping: Arc<dyn CallerMapping>) -> Self {
        Self {
            host,
            caller_mapping: Some(mapping),
            revocations: None,
            remote_sessions: None,
            tracer: None,
        }
    }

    /// Serves MCP requests of every kind, for the hub sessions in `sessions`.
    #[must_use]
    pub fn with_remote_sessions(self, sessions: &Arc<RemoteSessions>) -> Self {
        Self {
            remote_sessions: Some(Arc::clone(sessions)),
            ..self
        }
    }

    pub(super) const fn host(&self) -> &Host {
        &self.host
    }

    /// Enters a hub session, or the hub's own session, for one request.
    pub(super) fn enter_session(
        &self,
        server: &Arc<str>,
        session: Option<&Arc<str>>,
    ) -> Result<RemoteSessionGuard, FailureReport> {
        let sessions = self.remote_sessions.as_ref();
        let sessions = sessions.ok_or_else(|| failures::only_tools("a session"))?;
        Ok(sessions.enter_session(server, session))
    }

    pub(super) fn authorize_sender(
        &self,
        from: &MessageSender,
        authenticated: Option<&Arc<Principal>>,
    ) -> Result<Arc<Principal>, FailureReport> {
        let principal = match &self.caller_mapping {
            Some(mapping) => mapping.map_sender(from),
            None => authenticated.cloned(),
        };
        let principal = principal.ok_or_else(failures::unknown_sender)?;
        let revocations = self.revocations.as_ref();
        match revocations.is_some_and(|all| all.is_revoked(&principal.credential)) {
            true => Err(failures::credential_revoked()),
            false => Ok(principal),
        }
    }

    fn is_server_visible(&self, server: &str) -> bool {
        let mapping = self.caller_mapping.as_ref();
        mapping.is_none_or(|mapping| mapping.is_server_offered(server))
    }

    fn find_tool(&self, scope: &EndpointScope, tool: &Arc<str>) -> NameLookup {
        let subject = CallSubject::Tool(Arc::clone(tool));
        self.host.catalog().lookup(scope, &subject)
    }

    async fn handle_request(&self, job: &BackendRequest) -> BrokerResponse {
        if let Err(failure) = self.authorize(job) {
            return BrokerResponse::Failed(failure);
        }
        match &job.request {
            BrokerRequest::Call { .. } => self.call_server(job).await,
            BrokerRequest::Mcp {
                server,
                method,
                params,
                ..
            } => {
                let mcp_request = HubMcpRequest {
                    server,
                    method,
                    params: params.as_ref(),
                };
                self.handle_mcp(job, mcp_request).await
            }
            BrokerRequest::Manifest => {
                BrokerResponse::Failed(failures::bad_request(&"it is no call"))
            }
        }
    }

    /// Runs a request that a server answers.
    pub(super) async fn call_server(&self, job: &BackendRequest) -> BrokerResponse {
        let scope = request_scope(&job.request);
        let incoming = &job.incoming;
        let built = build_call(job, scope.clone(), || {
            self.authorize_sender(&incoming.sender, incoming.principal.as_ref())
        });
        let mut call = match built {
            Ok(Some(call)) => call,
            Ok(None) => return mcp_requests::unknown_method(&job.request),
            Err(failure) => return BrokerResponse::Failed(failure),
        };
        // The guard lives as long as the request and keeps the session from being evicted.
        let session = self.enter_call_session(job, &scope).await;
        let context = job.request.context();
        if let (Some(session), Some(context), Some(sink)) = (&session, context, &incoming.client) {
            call.message.client = Some(session.client_handle(sink, context));
        }
        call.message.trace = self.call_trace(context);
        match self.host.call(call).await {
            Ok(reply) => to_response(&reply),
            Err(error) => BrokerResponse::Failed(error.to_failure_report()),
        }
    }

    /// Enters the calling session named in the context, with the requested log level.
    async fn enter_call_session(
        &self,
        job: &BackendRequest,
        scope: &EndpointScope,
    ) -> Option<RemoteSessionGuard> {
        let context = job.request.context()?;
        let (EndpointScope::Server(server), Some(sessions)) = (scope, &self.remote_sessions) else {
            return None;
        };
        let session = sessions.enter_session(server, Some(context.session.as_ref()?));
        if let Some(level) = context.level
            && session.replace_level(Some(level))
        {
            // A server that rejects the level is called nonetheless.
            if let Ok(principal) =
                self.authorize_sender(&job.incoming.sender, job.incoming.principal.as_ref())
            {
                let _untaken = self
                    .host
                    .set_log_level(&principal, scope, session.key(), level)
                    .await;
            }
        }
        Some(session)
    }
}

impl Backend for HostBackend {
    fn manifest<'a>(
        &'a self,
        from: &'a MessageSender,
        principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<PeerManifest, FailureReport>> {
        Box::pin(async move {
            let principal = self.authorize_sender(from, principal)?;
            self.host.wait_settled().await;
            self.host
                .start_unlisted_for(&principal, &EndpointScope::All)
                .await;
            let items = self.host.visible_tools(&principal);
            let items = items
                .iter()
                .filter(|item| self.is_server_visible(&item.route.server));
            Ok(build_manifest(items.map(to_item).collect()))
        })
    }

    fn authorize(&self, job: &BackendRequest) -> Result<(), FailureReport> {
        if let BrokerRequest::Mcp { server, method, .. } = &job.request {
            if self.remote_sessions.is_none() {
                return Err(failures::only_tools(method));
            }
            if !mcp_requests::is_hub(&job.incoming.sender) {
                self.authorize_sender(&job.incoming.sender, job.incoming.principal.as_ref())?;
            }
            return match self.is_server_visible(server) {
                true => Ok(()),
                false => Err(failures::unknown_server(server)),
            };
        }
        self.authorize_sender(&job.incoming.sender, job.incoming.principal.as_ref())?;
        let BrokerRequest::Call { tool, server, .. } = &job.request else {
            return Ok(());
        };
        if self.caller_mapping.is_none() {
            return Ok(());
        }
        let is_visible = match server {
            Some(server) => self.is_server_visible(server),
            None => match self.find_tool(&EndpointScope::All, tool) {
                NameLookup::Route(route) | NameLookup::Withdrawn(route) => {
                    self.is_server_visible(&route.server)
                }
                NameLookup::Unlisted(server) => self.is_server_visible(&server),
                NameLookup::Unknown => true,
            },
        };
        match is_visible {
            true => Ok(()),
            // A tool of a server not offered to peers looks like an unknown tool.
            false => Err(failures::unknown_tool(tool)),
        }
    }

    fn is_repeatable(&self, job: &BackendRequest) -> bool {
        let BrokerRequest::Call { tool, .. } = &job.request else {
            return true;
        };
        match self.find_tool(&request_scope(&job.request), tool) {
            NameLookup::Route(route) => is_repeatable(&route),
            NameLookup::Withdrawn(_) | NameLookup::Unlisted(_) | NameLookup::Unknown => false,
        }
    }

    fn run<'a>(&'a self, job: &'a BackendRequest) -> BoxFuture<'a, BrokerResponse> {
        Box::pin(self.handle_request(job))
    }
}

/// A queueable call is recorded under an idempotency key to make the outcome known later, and is
/// never repeated without the key.
fn is_repeatable(route: &Route) -> bool {
    route.is_repeatable() && route.queue_policy.is_none()
}

fn request_scope(ask: &BrokerRequest) -> EndpointScope {
    match ask {
        BrokerRequest::Call {
            server: Some(server),
            ..
        } => EndpointScope::Server(Arc::clone(server)),
        BrokerRequest::Mcp { server, .. } => EndpointScope::Server(Arc::clone(server)),
        BrokerRequest::Call { .. } | BrokerRequest::Manifest => EndpointScope::All,
    }
}

fn to_item(item: &catalog::CatalogItem) -> ManifestItem {
    let mut definition = Vec::with_capacity(item.definition.len() + item.visible.len());
    item.write_visible(&mut definition);
    ManifestItem {
        name: Arc::clone(&item.visible),
        server: Some(Arc::clone(&item.route.server)),
        tool: Some(Arc::clone(&item.route.name)),
        is_repeatable: is_repeatable(&item.route),
        definition: definition.into(),
    }
}

fn to_response(reply: &CallReply) -> BrokerResponse {
    let body = reply.response.shared_body();
    match reply.response.body {
        BodyKind::Result => BrokerResponse::Output {
            result: body,
            from_journal: false,
            era: reply.response.era,
        },
        BodyKind::Error => BrokerResponse::RpcError {
            error: body,
            era: reply.response.era,
        },
    }
}
