//! `POST /api/v1/call`: one tool call from the command line, on the same road as any other.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use bowline_core::call::{Body, Call, Principal, Reply, Scope, Subject};
use bowline_core::caller::{Deaf, SessionKey};
use bowline_core::error::CallError;
use bowline_wire::era::result::to_legacy;
use bowline_wire::mcp::method;
use bowline_wire::scan::{self, Keys};
use bowline_wire::splice::write_string;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Failure, Shared, alive};
use crate::edge::{Edge, key, run, trace};

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    server: &'a str,
    tool: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What is answered; the result stays the bytes the server wrote.
#[derive(Debug, Serialize)]
pub(super) struct Answered {
    v: u8,
    server: String,
    tool: String,
    origin: &'static str,
    duration_us: u64,
    result: Box<RawValue>,
}

/// `POST /api/v1/call`
pub(super) async fn call(
    State(edge): Shared,
    Extension(owner): Extension<Arc<Principal>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Answered>, Failure> {
    let edge = alive(&edge)?;
    // The same strictness as at the MCP endpoints: a server may read another of two equal keys.
    scan::check(&body, Keys::Unique)
        .map_err(|fault| Failure::plain(StatusCode::BAD_REQUEST, "invalid", &fault.to_string()))?;
    let asked: Asked<'_> = serde_json::from_slice(&body)
        .map_err(|error| Failure::plain(StatusCode::BAD_REQUEST, "invalid", &error.to_string()))?;
    edge.host
        .server(asked.server)
        .map_err(|error| Failure::call(&edge, &error, None))?;
    let run = run::read(&headers, None).map_err(|run::Malformed| {
        Failure::plain(StatusCode::BAD_REQUEST, "invalid", run::MALFORMED)
    })?;
    let key = asked.idempotency_key.as_deref().map(key::of).transpose();
    let key = key.map_err(|key::Malformed| {
        Failure::plain(StatusCode::BAD_REQUEST, "invalid", key::MALFORMED)
    })?;
    let run = run.map(|run| edge.run_of(&owner, &run));
    let clock = edge.host.clock();
    let started = clock.instant(clock.now());
    let call = Call {
        run,
        key,
        ..to_call(&edge, owner, &asked, &headers)
    };
    let reply = edge
        .host
        .call(call)
        .await
        .map_err(|error| Failure::call(&edge, &error, Some(asked.server)))?;
    let result = result_of(&reply, asked.server)?;
    Ok(Json(Answered {
        v: 1,
        server: asked.server.to_owned(),
        tool: asked.tool,
        origin: reply.origin.as_str(),
        duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        result,
    }))
}

fn to_call(edge: &Edge, principal: Arc<Principal>, asked: &Asked<'_>, headers: &HeaderMap) -> Call {
    let mut params = Vec::from(&b"{\"name\":"[..]);
    let start = params.len();
    write_string(&mut params, &asked.tool);
    let name_at = start..params.len();
    params.extend_from_slice(b",\"arguments\":");
    params.extend_from_slice(asked.arguments.map_or(b"{}", |raw| raw.get().as_bytes()));
    params.push(b'}');
    Call {
        principal,
        scope: Scope::Server(asked.server.into()),
        subject: Subject::Tool(asked.tool.as_str().into()),
        params: params.into(),
        name_at,
        makes_task: false,
        progress_at: None,
        id: Bytes::from_static(b"1"),
        deadline: asked
            .timeout_ms
            .map(|wait| edge.host.clock().now().plus(Duration::from_millis(wait))),
        caller: Some(Arc::new(Deaf::new(SessionKey(0)))),
        trace: edge.traces.tracer.place(trace::read(headers, None)),
        run: None,
        key: None,
        stateless: None,
    }
}

fn result_of(reply: &Reply, server: &str) -> Result<Box<RawValue>, Failure> {
    let text = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    match reply.body {
        Body::Result => String::from_utf8(to_legacy(text, method::TOOLS_CALL).into_owned())
            .ok()
            .and_then(|text| RawValue::from_string(text).ok())
            .ok_or_else(|| bad_answer(server)),
        Body::Error => {
            let rpc: Value = serde_json::from_slice(text).map_err(|_| bad_answer(server))?;
            let message = rpc
                .get("message")
                .and_then(Value::as_str)
                .unwrap_or("no message");
            let body = json!({"error": {
                "code": "protocol_error",
                "message": format!("server `{server}` refused the call: {message}"),
                "class": "protocol_error",
                "execution": "completed",
                "rpc": rpc,
            }});
            Err(Failure(StatusCode::BAD_GATEWAY, body))
        }
    }
}

fn bad_answer(server: &str) -> Failure {
    let error = CallError::BadAnswer {
        server: server.into(),
        reason: "it is not JSON".into(),
    };
    Failure(
        crate::edge::errors::status(&error),
        crate::edge::errors::api(&error, &[]),
    )
}
