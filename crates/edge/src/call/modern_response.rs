//! Responses of the modern era (2026-07-28): results complete with server info and cache hints, and
//! errors with the HTTP status of their code.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::cache::{CacheHint, CacheScope};
use bowline_core::call::{BodyKind, CallReply, CallSubject, EndpointScope, Principal};
use bowline_core::client_handle::{ClientCapability, ClientHandle as _};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_link::{RelayError, relay_input_requests};
use bowline_wire::era::error_translation as era_error;
use bowline_wire::era::input_required::{self, InputRequest, InputRequired};
use bowline_wire::era::request_meta::supports_tasks;
use bowline_wire::era::result_translation::{ResultContext, ResultKind, result_kind, to_modern};
use bowline_wire::era::task_translation::{ParsedTask, created_to_modern};
use bowline_wire::jsonrpc::write_error;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;
use http::StatusCode;

use super::call_params::CallKind;
use super::modern_call_handle::ModernCallHandle;
use super::request_state::{self, RequestState};
use super::{CallResponse, CallResult, modern_call};
use crate::mcp::{accepts_type, error_response, result_response};
use crate::modern_mcp::ModernRequest;
use crate::modern_mcp::modern_tasks::{TASKS_CAPABILITY, task_id};
use crate::{Edge, call_errors};

/// Data for writing the response to a request after the request itself is gone.
#[derive(Debug)]
pub(crate) struct ModernResponder {
    pub(crate) edge: Arc<Edge>,
    pub(crate) principal: Arc<Principal>,
    pub(crate) scope: EndpointScope,
    pub(crate) kind: CallKind,
    /// Target of the call.
    pub(crate) subject: CallSubject,
    pub(crate) params: Bytes,
    /// Request id.
    pub(crate) id: Bytes,
    /// Whether the client accepts SSE.
    pub(crate) accepts_streams: bool,
    /// Whether the client accepts tasks as results.
    pub(crate) accepts_tasks: bool,
    /// Whether the call asks a legacy server for a task.
    pub(crate) makes_task: bool,
}

impl ModernResponder {
    /// Copies the needed data from a request.
    pub(crate) fn from_request(
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
    pub(crate) fn request_digest(&self) -> [u8; 32] {
        let arguments = object::field(&self.params, "arguments");
        let arguments = arguments.map(|at| at.slice(&self.params));
        request_state::request_digest(self.subject.method(), self.subject.name(), arguments)
    }

    pub(crate) fn state_binding<'a>(
        &'a self,
        request: &'a [u8; 32],
    ) -> request_state::StateBinding<'a> {
        request_state::StateBinding {
            principal: &self.principal,
            scope: &self.scope,
            request_digest: request,
        }
    }

    /// Writes an error for invalid parameters.
    pub(crate) fn invalid_params(&self, text: &str) -> CallResponse {
        self.error(code::INVALID_PARAMS, text)
    }

    fn error(&self, number: i64, text: &str) -> CallResponse {
        error_response(Some(&self.id), number, text).into()
    }

    /// Writes a modern result.
    pub(crate) fn result_response(&self, whole: &[u8]) -> CallResponse {
        result_response(&self.id, whole).into()
    }

    /// Writes the outcome of a call.
    pub(crate) fn outcome_response(
        &self,
        handle: &ModernCallHandle,
        outcome: CallResult,
    ) -> CallResponse {
        // A server that needed a missing capability failed for lack of the capability. Without a
        // reply the outcome is unknown, and the client must learn about the unknown outcome
        // instead.
        if let Some(capability) = handle.missing_capability()
            && outcome.as_ref().is_ok_and(has_failed)
        {
            return self.missing_capability(capability);
        }
        match outcome {
            Ok(reply) => match reply.response.body {
                BodyKind::Result => self.server_result(handle, reply),
                BodyKind::Error => self.server_error(handle, &reply),
            },
            Err(failed) => self.call_error(&failed),
        }
    }

    fn server_result(&self, handle: &ModernCallHandle, reply: CallReply) -> CallResponse {
        let inside = reply.response.shared_body();
        if reply.response.era == Era::Legacy {
            if self.makes_task
                && let Some(made) = created_to_modern(&inside)
            {
                return self.task_created(handle, &made);
            }
            let info = endpoint_info(&self.edge, &self.principal, &self.scope);
            let context = ResultContext {
                server_info: Some(&info),
                hint: None,
            };
            return self.result_response(&to_modern(&inside, self.subject.method(), &context));
        }
        match result_kind(&inside) {
            ResultKind::InputRequired => self.input_required(handle, &reply, &inside),
            ResultKind::Task => self.task_created(handle, &inside),
            // Rewritten, because the reply carries the id of an earlier request.
            _ if handle.parked_handle().is_some() => self.result_response(&inside),
            ResultKind::Complete | ResultKind::Unknown | ResultKind::Absent => {
                reply.response.bytes.into()
            }
        }
    }

    /// Writes an `input_required` result of a modern server: each request gets the server's name,
    /// and sealing the state prevents use by a different caller.
    fn input_required(
        &self,
        handle: &ModernCallHandle,
        reply: &CallReply,
        inside: &[u8],
    ) -> CallResponse {
        let server = reply.server.clone().unwrap_or_default();
        let marked = match object::field(inside, "inputRequests") {
            Some(at) => relay_input_requests(&server, handle.capabilities(), inside, at),
            None => Ok(inside.to_vec()),
        };
        let inside = match marked {
            Ok(marked) => marked,
            Err(unfit) => return self.refuse_server_request(server, &unfit),
        };
        let parsed = match InputRequired::parse(&inside) {
            Ok(parsed) => parsed,
            Err(bad) => return self.refuse_server_request(server, &bad.into()),
        };
        let text = parsed
            .state
            .and_then(|at| object::parse_string(at.slice(&inside)));
        let (Some(at), Some(text)) = (parsed.state, text) else {
            return self.result_response(&inside);
        };
        let digest = self.request_digest();
        let inner = RequestState::ServerState(text.into_owned());
        let now_ms = self.edge.host.clock().unix_ms();
        let seal = self.edge.sessions.seal();
        let Some(sealed) =
            request_state::seal_state(seal, self.state_binding(&digest), now_ms, &inner)
        else {
            return self.error(code::INTERNAL, "no state can be sealed");
        };
        let mut literal = Vec::new();
        write_string(&mut literal, &sealed);
        self.result_response(&replace_span(&inside, at, &literal))
    }

    /// Refuses to relay a server request that the client must not receive.
    pub(crate) fn refuse_server_request(
        &self,
        server: Arc<str>,
        error: &RelayError,
    ) -> CallResponse {
        let reason = error.to_string().into();
        tracing::warn!(%server, %reason, "server request not relayed");
        match error {
            RelayError::Undeclared(capability) => self.missing_capability(*capability),
            RelayError::Malformed(_) => self.call_error(&CallError::BadResponse { server, reason }),
            RelayError::Unknown(_) | RelayError::Secret(_) => {
                self.call_error(&CallError::InputUnanswered { server, reason })
            }
        }
    }

    /// Writes a task result with a sealed task id that names its owner.
    fn task_created(&self, handle: &ModernCallHandle, result: &[u8]) -> CallResponse {
        let sealed = ParsedTask::parse(result).and_then(|task| {
            let made = handle.task().filter(|made| *made.id == *task.id)?;
            let (seal, boot) = (self.edge.sessions.seal(), self.edge.modern_calls.boot_id);
            let created = object::text_field(result, "createdAt").unwrap_or_default();
            let sealed = task_id::seal_id(seal, &self.principal.name, boot, &made, &created)?;
            let mut literal = Vec::new();
            write_string(&mut literal, &sealed);
            Some(replace_span(result, task.id_at, &literal))
        });
        if let Some(whole) = sealed {
            return self.result_response(&whole);
        }
        self.error(
            code::INTERNAL,
            "the server made a task that cannot be named",
        )
    }

    /// Writes a server's error.
    pub(crate) fn server_error(
        &self,
        handle: &ModernCallHandle,
        reply: &CallReply,
    ) -> CallResponse {
        let inside = reply.response.shared_body();
        if reply.response.era == Era::Modern {
            let status = era_error::error_code(&inside).map_or(StatusCode::OK, status_for_code);
            return CallResponse::new(status, reply.response.bytes.clone());
        }
        if let Some(addresses) = input_required::url_elicitations(&inside)
            && self.can_relay_requests()
        {
            return self.url_elicitation(handle, &addresses);
        }
        // A tool that runs only as a task is unusable without task support.
        if !self.accepts_tasks && modern_call::is_task_required(self) {
            return self.missing_capabilities(TASKS_CAPABILITY);
        }
        let uri = (self.kind == CallKind::Resource).then(|| self.subject.name().as_ref());
        let inside = era_error::to_modern(&inside, uri);
        let status = era_error::error_code(&inside).map_or(StatusCode::OK, status_for_code);
        let response = call_errors::server_error_response(&self.id, &inside);
        CallResponse::new(status, response)
    }

    /// Returns whether servers may send requests during this call.
    pub(crate) const fn can_relay_requests(&self) -> bool {
        matches!(
            self.kind,
            CallKind::Tool | CallKind::Prompt | CallKind::Resource
        )
    }

    /// Asks the user to open URLs before the request is retried. The server has done nothing and
    /// keeps no state, so no state is sealed.
    fn url_elicitation(&self, handle: &ModernCallHandle, addresses: &[Vec<u8>]) -> CallResponse {
        if !handle
            .capabilities()
            .supports(ClientCapability::ElicitationUrl)
        {
            return self.missing_capability(ClientCapability::ElicitationUrl);
        }
        let keys: Vec<_> = (1..=addresses.len())
            .map(|nth| format!("ask-{nth}"))
            .collect();
        let requests = keys
            .iter()
            .zip(addresses)
            .map(|(key, params)| InputRequest {
                key,
                method: method::ELICITATION_CREATE,
                params: Some(params),
            });
        let requests: Vec<_> = requests.collect();
        self.result_response(&input_required::write_input_required(&requests, None))
    }

    /// Refuses a request that needs an undeclared capability.
    fn missing_capability(&self, capability: ClientCapability) -> CallResponse {
        let required: &[u8] = match capability {
            ClientCapability::Sampling => br#"{"sampling":{}}"#,
            ClientCapability::SamplingTools => br#"{"sampling":{"tools":{}}}"#,
            ClientCapability::ElicitationForm => br#"{"elicitation":{"form":{}}}"#,
            ClientCapability::ElicitationUrl => br#"{"elicitation":{"url":{}}}"#,
            ClientCapability::Roots => br#"{"roots":{}}"#,
        };
        self.missing_capabilities(required)
    }

    /// Refuses a request that needs these undeclared capabilities.
    pub(crate) fn missing_capabilities(&self, required: &[u8]) -> CallResponse {
        let data = [b"{\"requiredCapabilities\":", required, b"}"].concat();
        let text = "the client did not declare a capability that this request needs";
        let mut out = Vec::new();
        let number = code::MISSING_CAPABILITY;
        write_error(&mut out, Some(&self.id), number, text, Some(&data));
        CallResponse::new(status_for_code(number), out.into())
    }

    /// Writes the error of a failed call.
    pub(crate) fn call_error(&self, failed: &CallError) -> CallResponse {
        let text = call_errors::error_response(&self.id, failed);
        let error = object::field(&text, "error").map(|at| at.slice(&text));
        let number = error.and_then(era_error::error_code);
        let status = number.map_or(StatusCode::OK, status_for_code);
        let text = match failed {
            CallError::UnknownResource { uri } => self.to_modern_not_found(&text, uri),
            _ => text,
        };
        CallResponse::new(status, text).limited_by(failed)
    }

    /// Rewrites an unknown-resource error for the modern era.
    fn to_modern_not_found(&self, response: &Bytes, uri: &Arc<str>) -> Bytes {
        let Some(at) = object::field(response, "error") else {
            return response.clone();
        };
        let inside = era_error::to_modern(at.slice(response), Some(uri));
        replace_span(response, at, &inside).into()
    }
}

/// Returns whether a reply reports a failure.
fn has_failed(reply: &CallReply) -> bool {
    let inside = reply.response.body_bytes();
    let is_error =
        || object::field(inside, "isError").is_some_and(|at| at.slice(inside) == b"true");
    reply.response.body == BodyKind::Error || is_error()
}

/// Returns the HTTP status for a JSON-RPC error code.
pub(crate) const fn status_for_code(number: i64) -> StatusCode {
    match number {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}

/// Info of the gateway, for endpoints of several servers.
pub(crate) const GATEWAY_INFO: &str = concat!(
    r#"{"name":"bowline","title":"Bowline","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}"#,
);

/// Returns the info of an endpoint: its single server's, or the gateway's.
pub(crate) fn server_info(request: &ModernRequest<'_>) -> Bytes {
    let caller = request.caller;
    endpoint_info(caller.edge, caller.principal, caller.scope)
}

/// The same without a request.
pub(crate) fn endpoint_info(edge: &Edge, principal: &Principal, scope: &EndpointScope) -> Bytes {
    let own = edge.host.server_info(principal, scope);
    own.unwrap_or(Bytes::from_static(GATEWAY_INFO.as_bytes()))
}

/// Not cacheable and private: the safe default.
pub(crate) const NOT_CACHED: CacheHint = CacheHint {
    ttl: Duration::ZERO,
    scope: CacheScope::Private,
};

/// Completes a legacy result for the modern era.
pub(crate) fn complete_result(
    request: &ModernRequest<'_>,
    result: &[u8],
    hint: Option<CacheHint>,
) -> Vec<u8> {
    let info = server_info(request);
    let context = ResultContext {
        server_info: Some(&info),
        hint,
    };
    to_modern(result, request.method, &context)
}
