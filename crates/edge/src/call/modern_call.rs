//! Calls of clients without a session (2026-07-28): reads the request, and starts or continues the
//! call.

use std::sync::Arc;

use bowline_core::call::{CallRequest, RequestMessage, Route};
use bowline_core::client_handle::{ClientCapabilities, ClientHandle};
use bowline_core::era::Era;
use bowline_core::era::StatelessContext;
use bowline_core::log_level::LogLevel;
use bowline_host::catalog::NameLookup;
use bowline_wire::mcp::code;
use bowline_wire::{MemberList, ObjectEditor, object};
use bytes::Bytes;

use super::call_params::{CallKind, CallParams, build_call, parse_params};
use super::call_rounds::{self, Continuation};
use super::modern_call_handle::{CallRound, ModernCallHandle, RoundOptions};
use super::modern_response::ModernResponder;
use super::{CallResponse, CallStream, ResponseFuture};
use crate::mcp::{McpCaller, error_response};
use crate::modern_mcp::ModernRequest;
use crate::modern_mcp::sessionless_clients::{ClientDeclaration, LogLevelGuard, SessionlessClient};
use crate::response_body::EdgeResponse;

/// Handles a request that servers answer.
pub(crate) async fn handle_call(request: ModernRequest<'_>, kind: CallKind) -> EdgeResponse {
    let edge = request.caller.edge;
    match open_round(request, kind).await {
        Ok(round) => super::respond(edge, round.responding, round.stream).await,
        Err(refused) => refused.into_http(),
    }
}

/// A request whose call runs: the first of a call, or a continuation with input.
pub(super) struct OpenRound {
    pub(super) responding: ResponseFuture,
    /// Absent if the client does not accept SSE.
    pub(super) stream: Option<Arc<dyn CallStream>>,
}

/// Starts the call of a request, or continues a parked call.
async fn open_round(request: ModernRequest<'_>, kind: CallKind) -> Result<OpenRound, CallResponse> {
    let params = request.message.params_span().map_or_else(Bytes::new, |at| {
        request.message.bytes().slice(at.start..at.end)
    });
    let Some(mut call_params) = parse_params(&params, kind) else {
        let text = kind.missing_target_text();
        return Err(error_response(Some(request.id()), code::INVALID_PARAMS, text).into());
    };
    let subject = call_params.subject.clone();
    let mut responder = ModernResponder::from_request(&request, kind, subject, params);
    let continuation = call_rounds::parse_continuation(&responder);
    let continuation = continuation.map_err(|failed| responder.call_error(&failed))?;
    let is_continuation = match continuation {
        Continuation::FirstRequest => false,
        Continuation::Responses => true,
        // The server's own `requestState` replaces the sealed state.
        Continuation::ServerState(params) => {
            call_params = replace_params(&mut responder, params)?;
            true
        }
        Continuation::Parked(ticket) => {
            return call_rounds::resume_call(&request, responder, &call_params, ticket);
        }
    };
    start_call(request, responder, call_params, is_continuation).await
}

/// Starts a call on the host.
async fn start_call(
    request: ModernRequest<'_>,
    mut responder: ModernResponder,
    mut call_params: CallParams,
    is_continuation: bool,
) -> Result<OpenRound, CallResponse> {
    // A legacy server creates tasks only if the tool's definition allows tasks.
    if let Some(params) = rewrite_task_param(&responder, call_params.makes_task) {
        call_params = replace_params(&mut responder, params)?;
        responder.makes_task = call_params.makes_task;
    }
    let caller = request.caller;
    let mut options = round_options(&request, &responder.params, &call_params);
    let (id, params) = (responder.id.clone(), responder.params.clone());
    let call = build_call(caller, id, params, call_params);
    let call = call.map_err(|text| responder.invalid_params(text))?;
    let client = enter_client(&request, &responder);
    let level_guard = match request.log_level {
        Some(level) => Some(Box::pin(apply_log_level(caller, &client, level)).await),
        None => None,
    };
    // Call kinds without `input_required` results get no server requests.
    if !responder.can_relay_requests() {
        options.capabilities = ClientCapabilities::default();
    }
    let (handle, round, cancelled) = ModernCallHandle::new(client, options);
    let call = CallRequest {
        stateless: Some(Box::new(StatelessContext {
            header_claims: request.claims,
            is_continuation,
            task_id: None,
        })),
        message: RequestMessage {
            client: Some(Arc::clone(&handle) as Arc<dyn ClientHandle>),
            era: Era::Modern,
            ..call.message
        },
        ..call
    };
    let edge = Arc::clone(caller.edge);
    let running = Box::pin(async move {
        let _hearing = level_guard;
        super::run_call(&edge, &call, cancelled).await
    });
    let responder = Arc::new(responder);
    Ok(OpenRound {
        stream: accepted_stream(&responder, round),
        responding: Box::pin(call_rounds::first_round(responder, handle, running)),
    })
}

/// Returns the stream of a round, if the client accepts SSE.
pub(super) fn accepted_stream(
    responder: &ModernResponder,
    round: Arc<CallRound>,
) -> Option<Arc<dyn CallStream>> {
    let stream: Arc<dyn CallStream> = round;
    responder.accepts_streams.then_some(stream)
}

/// Replaces the parameters of a request.
fn replace_params(
    responder: &mut ModernResponder,
    params: Bytes,
) -> Result<CallParams, CallResponse> {
    responder.params = params;
    parse_params(&responder.params, responder.kind)
        .ok_or_else(|| responder.invalid_params(responder.kind.missing_target_text()))
}

/// Returns the client that sent a request, and ends evicted clients.
pub(crate) fn enter_client(
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
pub(crate) fn round_options(
    request: &ModernRequest<'_>,
    params: &Bytes,
    named: &CallParams,
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

/// Task support declared by a tool of a legacy server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskSupport {
    Forbidden,
    Optional,
    Required,
}

/// Returns the task support and the route of the called tool, if its server is legacy.
fn task_support(responder: &ModernResponder) -> Option<(TaskSupport, Arc<Route>)> {
    if responder.kind != CallKind::Tool {
        return None;
    }
    let host = &responder.edge.host;
    let (catalog, scope) = (host.catalog(), &responder.scope);
    let subject = host.effective_subject(scope, &responder.subject, &responder.params);
    let NameLookup::Route(route) = catalog.lookup(scope, &subject) else {
        return None;
    };
    let offer = catalog.server(&route.server)?;
    // A modern server decides by itself.
    if object::field(&offer.initialize, "supportedVersions").is_some() {
        return None;
    }
    let item = offer
        .tools
        .items
        .iter()
        .find(|item| item.route.name == route.name)?;
    let execution =
        object::field(&item.unqueued_definition, "execution")?.slice(&item.unqueued_definition);
    let support = match object::text_field(execution, "taskSupport")?.as_ref() {
        "required" => TaskSupport::Required,
        "optional" => TaskSupport::Optional,
        _ => TaskSupport::Forbidden,
    };
    Some((support, route))
}

/// Returns whether the called tool runs only as a task.
pub(crate) fn is_task_required(responder: &ModernResponder) -> bool {
    matches!(task_support(responder), Some((TaskSupport::Required, _)))
}

/// Returns parameters with the `task` member added or removed, if a change is needed: modern
/// clients never send the member, and legacy servers need it. A queueable call outlives its server
/// and so does not become a task unless required.
fn rewrite_task_param(responder: &ModernResponder, has_task_param: bool) -> Option<Bytes> {
    let wants_task = responder.accepts_tasks
        && match task_support(responder) {
            Some((TaskSupport::Required, _)) => true,
            Some((TaskSupport::Optional, route)) => route.queue_policy.is_none(),
            Some((TaskSupport::Forbidden, _)) | None => false,
        };
    if !wants_task && !has_task_param {
        return None;
    }
    let mut editor = ObjectEditor::new(&responder.params);
    let whole = editor.whole();
    editor.retain(whole, |key, _| key != b"task");
    if wants_task {
        editor.insert_first(whole, MemberList::from_member("task", b"{}"));
    }
    Some(editor.finish().into())
}
