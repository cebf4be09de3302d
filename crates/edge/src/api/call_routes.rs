//! `POST /api/v1/call`: a tool call from the command line, through the regular call path.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use bowline_api::VERSION;
use bowline_api::calls::{ToolCallRequest, ToolCallResponse};
use bowline_core::call::{
    BodyKind, CallReply, CallRequest, CallSubject, EndpointScope, Principal, RequestMessage,
};
use bowline_core::client_handle::{NullClient, SessionKey};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_wire::era::result_translation::to_legacy;
use bowline_wire::mcp::method;
use bowline_wire::splice::write_string;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{ApiError, EdgeState, parse_body, upgrade_edge};
use crate::call::call_params::{self, InvalidKey, InvalidRun};
use crate::{Edge, call_errors};

/// `POST /api/v1/call`
pub(super) async fn call_tool(
    State(edge): EdgeState,
    Extension(owner): Extension<Arc<Principal>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<ToolCallResponse>, ApiError> {
    let edge = upgrade_edge(&edge)?;
    let request: ToolCallRequest = parse_body(&body)?;
    edge.host
        .server(&request.server)
        .map_err(|error| ApiError::from_call_error(&edge, &error, None))?;
    let run = call_params::read_run(&headers, None).map_err(|InvalidRun| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", call_params::INVALID_RUN)
    })?;
    let key = request
        .idempotency_key
        .as_deref()
        .map(call_params::parse_key)
        .transpose();
    let key = key.map_err(|InvalidKey| {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid", call_params::INVALID_KEY)
    })?;
    let run = run.map(|run| edge.enter_run(&owner, &run));
    let clock = edge.host.clock();
    let started = clock.instant(clock.now());
    let call = CallRequest {
        run,
        idempotency_key: key,
        ..to_call(&edge, owner, &request, &headers)
    };
    let reply = edge
        .host
        .call(call)
        .await
        .map_err(|error| ApiError::from_call_error(&edge, &error, Some(&request.server)))?;
    let result = extract_result(&reply, &request.server)?;
    Ok(Json(ToolCallResponse {
        v: VERSION,
        server: request.server,
        tool: request.tool,
        origin: reply.origin.as_str().into(),
        duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        result,
    }))
}

fn to_call(
    edge: &Edge,
    principal: Arc<Principal>,
    request: &ToolCallRequest,
    headers: &HeaderMap,
) -> CallRequest {
    let mut params = Vec::from(&b"{\"name\":"[..]);
    let start = params.len();
    write_string(&mut params, &request.tool);
    let name_at = start..params.len();
    let arguments = request.arguments.as_deref();
    let arguments = arguments.map(|raw| raw.get().as_bytes());
    params.extend_from_slice(b",\"arguments\":");
    params.extend_from_slice(arguments.unwrap_or(b"{}"));
    params.push(b'}');
    CallRequest {
        principal,
        scope: EndpointScope::Server(request.server.as_str().into()),
        subject: CallSubject::Tool(request.tool.as_str().into()),
        name_at,
        wants_task: false,
        deadline: request
            .timeout_ms
            .map(|wait| edge.host.clock().now().plus(Duration::from_millis(wait))),
        run: None,
        idempotency_key: None,
        stateless: None,
        message: RequestMessage {
            params: params.into(),
            progress_at: None,
            id: Bytes::from_static(b"1"),
            client: Some(Arc::new(NullClient::new(SessionKey(0)))),
            trace: edge
                .call_tracing
                .tracer
                .assign_trace(call_params::read_trace(headers, None)),
            era: Era::Legacy,
        },
    }
}

fn extract_result(reply: &CallReply, server: &str) -> Result<Box<RawValue>, ApiError> {
    let text = reply.response.body_bytes();
    match reply.response.body {
        BodyKind::Result => String::from_utf8(to_legacy(text, method::TOOLS_CALL).into_owned())
            .ok()
            .and_then(|text| RawValue::from_string(text).ok())
            .ok_or_else(|| bad_response_error(server)),
        BodyKind::Error => {
            let rpc: Value =
                serde_json::from_slice(text).map_err(|_| bad_response_error(server))?;
            let message = rpc
                .get("message")
                .and_then(Value::as_str)
                .unwrap_or("no message");
            let message = format!("server `{server}` refused the call: {message}");
            let mut failure = ApiError::new(StatusCode::BAD_GATEWAY, "protocol_error", &message);
            failure.1.details = Map::from_iter([
                ("class".to_owned(), "protocol_error".into()),
                ("execution".to_owned(), "completed".into()),
                ("rpc".to_owned(), rpc),
            ]);
            Err(failure)
        }
    }
}

fn bad_response_error(server: &str) -> ApiError {
    let error = CallError::BadResponse {
        server: server.into(),
        reason: "it is not JSON".into(),
    };
    ApiError(
        call_errors::http_status(&error),
        Box::new(call_errors::to_error_body(&error, Vec::new())),
    )
}
