//! Calls of modern clients: from request bytes to the host, and back in the modern era.

mod call_rounds;
mod continuation;
pub(super) mod input_required;
pub(super) mod modern_response;

use std::sync::{Arc, Mutex};

use bowline_core::call::{
    CallReply, CallRequest, CallSubject, EndpointScope, Principal, ReplyOrigin,
};
use bowline_core::client_handle::{ClientCapabilities, ClientHandle};
use bowline_core::era::{Era, StatelessContext};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_wire::RpcMessage;
use bowline_wire::era::request_meta::supports_tasks;
use bowline_wire::mcp::code;
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::oneshot;

use super::modern_call_handle::{CallResult, ModernCallHandle, RoundOptions};
use super::modern_tasks::{self, TaskWaiters};
use super::parked_calls::ParkedCallTable;
use super::request_check::ModernRequest;
use super::request_state;
use super::sessionless_clients::{
    ClientDeclaration, LogLevelGuard, SessionlessClient, SessionlessClients,
};
use crate::edge::mcp::mcp_call::{CallKind, CallParams as Named, parse_params};
use crate::edge::mcp::{McpCaller, accepts_type, error_response, outbox_resource};
use crate::edge::response_body::{self, EdgeResponse};
use crate::edge::{Edge, idempotency_key, run_claim, trace_context};
use call_rounds::ModernCallFuture;
use continuation::Continuation;

/// State shared by all calls without a session.
#[derive(Debug)]
pub(in crate::edge) struct ModernCalls {
    /// Recently active clients.
    pub(in crate::edge) clients: SessionlessClients,
    /// Calls waiting for input from their clients.
    parked: Mutex<ParkedCallTable<Arc<ModernCallHandle>>>,
    /// Pending `tasks/result` requests on behalf of polling clients.
    pub(super) task_waiters: TaskWaiters,
    /// Random id of this process; tells its parked calls from an earlier process's.
    pub(super) boot_id: u64,
}

impl Default for ModernCalls {
    fn default() -> Self {
        let mut boot = [0; 8];
        // Without randomness no state is sealed, so none can be mistaken for an earlier process's.
        let _ = getrandom::fill(&mut boot);
        Self {
            clients: SessionlessClients::default(),
            parked: Mutex::default(),
            task_waiters: TaskWaiters::default(),
            boot_id: u64::from_ne_bytes(boot),
        }
    }
}

impl ModernCalls {
    /// Cancels parked calls past their deadline and removes idle clients.
    pub(in crate::edge) fn sweep(&self, edge: &Edge) {
        let now = edge.host.clock().now();
        let late = lock(&self.parked).take_expired(now);
        for end in late {
            end.cancel();
        }
        self.task_waiters.sweep(now);
        for client in self.clients.sweep(now) {
            edge.host.end_session(client);
        }
    }

    /// Cancels everything started with an ended credential.
    pub(in crate::edge) fn cancel_by_credential(&self, edge: &Edge, credential: &str) {
        let waiting =
            lock(&self.parked).take_matching(|end| end.client().has_credential(credential));
        for end in waiting {
            end.cancel();
        }
        self.task_waiters.cancel_by_credential(credential);
        for client in self.clients.remove_by_credential(credential) {
            edge.host.end_session(client);
        }
    }
}

/// Data for writing the response to a request after the request itself is gone.
#[derive(Debug)]
pub(super) struct ModernResponder {
    pub(super) edge: Arc<Edge>,
    pub(super) principal: Arc<Principal>,
    pub(super) scope: EndpointScope,
    pub(super) kind: CallKind,
    /// Target of the call.
    pub(super) subject: CallSubject,
    pub(super) params: Bytes,
    /// Request id.
    pub(super) id: Bytes,
    /// Whether the client accepts SSE.
    accepts_streams: bool,
    /// Whether the client accepts tasks as results.
    pub(super) accepts_tasks: bool,
    /// Whether the call asks a legacy server for a task.
    makes_task: bool,
}

impl ModernResponder {
    /// Copies the needed data from a request.
    pub(super) fn from_request(
        request: &ModernRequest<'_>,
        kind: CallKind,
        subject: CallSubject,
        params: Bytes,
    ) -> Self {
        let caller = request.caller;
        Self {
            edge: Arc::clone(caller.edge),
            principal: Arc::clone(caller.principal),
            scope: caller.scope.clone(),
            kind,
            subject,
            params,
            id: Bytes::copy_from_slice(request.id()),
            accepts_streams: accepts_type(caller.parts, "text/event-stream"),
            accepts_tasks: supports_tasks(request.capabilities_at.slice(request.params())),
            makes_task: false,
        }
    }

    /// Returns the digest that binds a request state to this request.
    fn request_digest(&self) -> [u8; 32] {
        let arguments = bowline_wire::object::field(&self.params, "arguments");
        let arguments = arguments.map(|at| at.slice(&self.params));
        request_state::request_digest(self.subject.method(), self.subject.name(), arguments)
    }

    fn state_binding<'a>(&'a self, request: &'a [u8; 32]) -> request_state::StateBinding<'a> {
        request_state::StateBinding {
            principal: &self.principal,
            scope: &self.scope,
            request_digest: request,
        }
    }
}

/// Handles a request that servers answer.
pub(super) async fn handle_call(request: ModernRequest<'_>, kind: CallKind) -> EdgeResponse {
    let params = request.message.params_span().map_or_else(Bytes::new, |at| {
        request.message.bytes().slice(at.start..at.end)
    });
    let Some(call_params) = parse_params(&params, kind) else {
        let refused = error_response(
            Some(request.id()),
            code::INVALID_PARAMS,
            kind.missing_target_text(),
        );
        return response_body::json_response(StatusCode::OK, refused);
    };
    let mut responder =
        ModernResponder::from_request(&request, kind, call_params.subject.clone(), params);
    let continuation = match continuation::parse_continuation(&responder) {
        Ok(continuation) => continuation,
        Err(failed) => return responder.call_error_http(&failed),
    };
    match continuation {
        Continuation::FirstRequest => start_call(request, responder, call_params, false).await,
        Continuation::Responses => start_call(request, responder, call_params, true).await,
        // The server's own `requestState` replaces the sealed state.
        Continuation::ServerState(params) => match parse_params(&params, kind) {
            Some(call_params) => {
                responder.params = params;
                start_call(request, responder, call_params, true).await
            }
            None => responder.invalid_params_http(kind.missing_target_text()),
        },
        Continuation::Parked(ticket) => {
            Box::pin(call_rounds::resume_call(&request, responder, ticket)).await
        }
    }
}

/// Starts a call on the host and responds with its outcome.
async fn start_call(
    request: ModernRequest<'_>,
    mut responder: ModernResponder,
    mut call_params: Named,
    retried: bool,
) -> EdgeResponse {
    // A legacy server creates tasks only if the tool's definition allows tasks.
    if let Some(params) = modern_tasks::rewrite_task_param(&responder, call_params.makes_task) {
        responder.params = params;
        let Some(rewritten) = parse_params(&responder.params, responder.kind) else {
            return responder.invalid_params_http(responder.kind.missing_target_text());
        };
        call_params = rewritten;
        responder.makes_task = call_params.makes_task;
    }
    let caller = request.caller;
    let edge = caller.edge;
    let meta = call_params.meta.map(|at| at.slice(&responder.params));
    let Ok(run) = run_claim::read_run(&caller.parts.headers, meta) else {
        return responder.invalid_params_http(run_claim::INVALID_RUN);
    };
    let run = run.map(|run| edge.enter_run(caller.principal, &run));
    let Ok(key) = idempotency_key::read_from_meta(meta) else {
        return responder.invalid_params_http(idempotency_key::INVALID_KEY);
    };
    let incoming_trace = trace_context::read_trace(&caller.parts.headers, meta);
    let client = enter_client(&request, &responder);
    let level_guard = match request.log_level {
        Some(level) => Some(Box::pin(apply_log_level(caller, &client, level)).await),
        None => None,
    };
    let mut options = round_options(&request, &responder.params, &call_params);
    // Call kinds without `input_required` results get no server requests.
    if !responder.can_relay_requests() {
        options.capabilities = ClientCapabilities::default();
    }
    let (end, round, cancelled) = ModernCallHandle::new(client, options);
    let call = CallRequest {
        principal: Arc::clone(&responder.principal),
        scope: responder.scope.clone(),
        subject: call_params.subject,
        params: responder.params.clone(),
        name_at: call_params.name_at,
        wants_task: call_params.makes_task,
        progress_at: call_params.progress_at,
        id: responder.id.clone(),
        deadline: None,
        client: Some(Arc::clone(&end) as Arc<dyn ClientHandle>),
        trace: edge.call_tracing.tracer.assign_trace(incoming_trace),
        run,
        idempotency_key: key,
        stateless: Some(Box::new(StatelessContext {
            header_claims: request.claims,
            is_continuation: retried,
            task_id: None,
        })),
    };
    let call_result = run_call(Arc::clone(edge), call, cancelled);
    let running: ModernCallFuture = Box::pin(async move {
        let _hearing = level_guard;
        call_result.await
    });
    call_rounds::run_first_round(responder, end, round, running).await
}

pub(super) fn enter_client(
    request: &ModernRequest<'_>,
    responder: &ModernResponder,
) -> Arc<SessionlessClient> {
    let info = request.client_info_at.map(|at| at.slice(request.params()));
    let edge = &responder.edge;
    let (client, evicted) = edge.modern_calls.clients.enter_client(
        &edge.sessions,
        &responder.principal,
        &responder.scope,
        ClientDeclaration {
            capabilities: request.abilities,
            info: info.unwrap_or_default(),
        },
        edge.host.clock().now(),
    );
    for client in evicted {
        edge.host.end_session(client);
    }
    client
}

/// Returns the delivery options of a request.
pub(super) fn round_options(
    request: &ModernRequest<'_>,
    params: &Bytes,
    named: &Named,
) -> RoundOptions {
    RoundOptions {
        capabilities: request.abilities,
        level: request.log_level,
        progress_token: named.progress_at.clone().map(|at| params.slice(at)),
    }
}

/// Requests a log level from servers, if different from the last level sent.
async fn apply_log_level(
    caller: McpCaller<'_>,
    client: &Arc<SessionlessClient>,
    level: LogLevel,
) -> LogLevelGuard {
    let McpCaller {
        edge,
        principal,
        scope,
        ..
    } = caller;
    let (guard, changed_level) = client.request_level(level);
    if let Some(level) = changed_level {
        // A server that fails to apply the level only logs less.
        let _ = edge
            .host
            .set_log_level(principal, scope, client.key, level)
            .await;
    }
    guard
}

/// Runs a call until its response or cancellation.
pub(super) async fn run_call(
    edge: Arc<Edge>,
    call: CallRequest,
    mut cancelled: oneshot::Receiver<()>,
) -> CallResult {
    if let CallSubject::Resource(uri) = &call.subject
        && outbox_resource::is_outbox_uri(uri)
    {
        let (principal, scope) = (&call.principal, &call.scope);
        let read = outbox_resource::read_outbox(&edge, principal, scope, uri, &call.id);
        return to_call_result(Box::pin(read).await);
    }
    tokio::select! {
        biased;
        outcome = edge.host.call(&call) => outcome,
        Ok(()) = &mut cancelled => Err(CallError::Cancelled {
            execution: ExecutionStatus::Unknown,
        }),
    }
}

/// Wraps the gateway's own response as a server reply.
fn to_call_result(bytes: Bytes) -> CallResult {
    use bowline_core::call::BodyKind;
    let read = RpcMessage::parse_from_server(bytes.clone()).ok();
    let kind_and_span = read.and_then(|message| match message.result_span() {
        Some(at) => Some((BodyKind::Result, at)),
        None => message.error_span().map(|at| (BodyKind::Error, at)),
    });
    let (body, at) = kind_and_span.ok_or(CallError::ShuttingDown)?;
    Ok(CallReply {
        response: bytes,
        body_at: at.start..at.end,
        body_kind: body,
        origin: ReplyOrigin::Live,
        era: Era::Legacy,
        server: None,
    })
}
