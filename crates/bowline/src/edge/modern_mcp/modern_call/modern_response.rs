//! Responses of modern calls, written under the id of the waiting request.

use std::sync::Arc;

use bowline_core::call::{BodyKind, CallReply};
use bowline_core::client_handle::{ClientCapability, ClientHandle as _};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_link::{RelayError, relay_input_requests};
use bowline_wire::era::error_translation as era_error;
use bowline_wire::era::input_required::{self, InputRequest, InputRequired};
use bowline_wire::era::result_translation::{ResultContext, ResultKind, result_kind, to_modern};
use bowline_wire::era::task_translation::{ParsedTask, created_to_modern};
use bowline_wire::jsonrpc::write_error;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};

use super::{CallResult, ModernCallHandle, ModernResponder};
use crate::edge::call_errors::{self, TooManyRequests};
use crate::edge::mcp::mcp_call::CallKind as Asks;
use crate::edge::mcp::{error_response, result_response};
use crate::edge::modern_mcp::http_status;
use crate::edge::modern_mcp::modern_result::endpoint_info;
use crate::edge::modern_mcp::modern_tasks::{self, TASKS_CAPABILITY, task_id};
use crate::edge::modern_mcp::request_state::{self, RequestState};
use crate::edge::response_body::{self, EdgeResponse};

/// A JSON-RPC response with its HTTP status.
#[derive(Debug)]
pub(in crate::edge::modern_mcp) struct ModernResponse {
    pub(in crate::edge::modern_mcp) response: Bytes,
    status: StatusCode,
    /// Set if a rate, budget or share limit refused the call.
    too_many_requests: Option<TooManyRequests>,
}

impl ModernResponse {
    fn new(status: StatusCode, response: Bytes) -> Self {
        Self {
            response,
            status,
            too_many_requests: None,
        }
    }

    /// Returns an error for invalid parameters.
    pub(in crate::edge::modern_mcp) fn invalid_params(
        responder: &ModernResponder,
        text: &str,
    ) -> Self {
        let refused = error_response(Some(&responder.id), code::INVALID_PARAMS, text);
        Self::new(StatusCode::OK, refused)
    }

    /// Returns a JSON response without preceding notifications.
    pub(in crate::edge::modern_mcp) fn into_http(self) -> EdgeResponse {
        let mut response = response_body::json_response(self.status, self.response);
        let seconds = self
            .too_many_requests
            .and_then(TooManyRequests::retry_after_seconds);
        if let Some(seconds) = seconds {
            let wait = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

impl ModernResponder {
    /// Returns an error response for invalid parameters.
    pub(in crate::edge::modern_mcp) fn invalid_params_http(&self, text: &str) -> EdgeResponse {
        let refused = error_response(Some(&self.id), code::INVALID_PARAMS, text);
        response_body::json_response(StatusCode::OK, refused)
    }

    /// Returns an error response for a failed call.
    pub(in crate::edge::modern_mcp) fn call_error_http(&self, failed: &CallError) -> EdgeResponse {
        self.call_error(failed).into_http()
    }

    /// Writes a modern result.
    pub(in crate::edge::modern_mcp) fn result_response(&self, whole: &[u8]) -> ModernResponse {
        ModernResponse::new(StatusCode::OK, result_response(&self.id, whole))
    }

    /// Writes the outcome of a call.
    pub(in crate::edge::modern_mcp) fn outcome_response(
        &self,
        handle: &ModernCallHandle,
        outcome: CallResult,
    ) -> ModernResponse {
        // A server that needed a missing capability failed for lack of the capability. Without a
        // reply the outcome is unknown, and the client must learn about the unknown outcome
        // instead.
        if let Some(capability) = handle.missing_capability()
            && outcome.as_ref().is_ok_and(has_failed)
        {
            return self.missing_capability(capability);
        }
        match outcome {
            Ok(reply) => match reply.body_kind {
                BodyKind::Result => self.server_result(handle, reply),
                BodyKind::Error => self.server_error(handle, &reply),
            },
            Err(failed) => self.call_error(&failed),
        }
    }

    fn server_result(&self, handle: &ModernCallHandle, reply: CallReply) -> ModernResponse {
        let inside = reply.response.slice(reply.body_at.clone());
        if reply.era == Era::Legacy {
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
                ModernResponse::new(StatusCode::OK, reply.response)
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
    ) -> ModernResponse {
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
            let refused = error_response(Some(&self.id), code::INTERNAL, "no state can be sealed");
            return ModernResponse::new(StatusCode::OK, refused);
        };
        let mut literal = Vec::new();
        write_string(&mut literal, &sealed);
        self.result_response(&replace_span(&inside, at, &literal))
    }

    /// Refuses to relay a server request that the client must not receive.
    pub(in crate::edge::modern_mcp) fn refuse_server_request(
        &self,
        server: Arc<str>,
        error: &RelayError,
    ) -> ModernResponse {
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
    fn task_created(&self, handle: &ModernCallHandle, result: &[u8]) -> ModernResponse {
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
        let text = "the server made a task that cannot be named";
        let refused = error_response(Some(&self.id), code::INTERNAL, text);
        ModernResponse::new(StatusCode::OK, refused)
    }

    /// Writes a server's error.
    pub(in crate::edge::modern_mcp) fn server_error(
        &self,
        handle: &ModernCallHandle,
        reply: &CallReply,
    ) -> ModernResponse {
        let inside = reply.response.slice(reply.body_at.clone());
        if reply.era == Era::Modern {
            let status =
                era_error::error_code(&inside).map_or(StatusCode::OK, http_status::status_for_code);
            return ModernResponse::new(status, reply.response.clone());
        }
        if let Some(addresses) = input_required::url_elicitations(&inside)
            && self.can_relay_requests()
        {
            return self.url_elicitation(handle, &addresses);
        }
        // A tool that runs only as a task is unusable without task support.
        if !self.accepts_tasks && modern_tasks::is_task_required(self) {
            return self.missing_capabilities(TASKS_CAPABILITY);
        }
        let uri = (self.kind == Asks::Resource).then(|| self.subject.name().as_ref());
        let inside = era_error::to_modern(&inside, uri);
        let status =
            era_error::error_code(&inside).map_or(StatusCode::OK, http_status::status_for_code);
        let mut out = Vec::with_capacity(self.id.len() + inside.len() + 40);
        out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        out.extend_from_slice(&self.id);
        out.extend_from_slice(b",\"error\":");
        out.extend_from_slice(&inside);
        out.push(b'}');
        ModernResponse::new(status, out.into())
    }

    /// Returns whether servers may send requests during this call.
    pub(super) const fn can_relay_requests(&self) -> bool {
        matches!(self.kind, Asks::Tool | Asks::Prompt | Asks::Resource)
    }

    /// Asks the user to open URLs before the request is retried. The server has done nothing and
    /// keeps no state, so no state is sealed.
    fn url_elicitation(&self, handle: &ModernCallHandle, addresses: &[Vec<u8>]) -> ModernResponse {
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
    fn missing_capability(&self, capability: ClientCapability) -> ModernResponse {
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
    pub(in crate::edge::modern_mcp) fn missing_capabilities(
        &self,
        required: &[u8],
    ) -> ModernResponse {
        let data = [b"{\"requiredCapabilities\":", required, b"}"].concat();
        let text = "the client did not declare a capability that this request needs";
        let mut out = Vec::new();
        let number = code::MISSING_CAPABILITY;
        write_error(&mut out, Some(&self.id), number, text, Some(&data));
        ModernResponse::new(http_status::status_for_code(number), out.into())
    }

    pub(in crate::edge::modern_mcp) fn call_error(&self, failed: &CallError) -> ModernResponse {
        let text = call_errors::error_response(&self.id, failed);
        let too_much = TooManyRequests::from_error(failed);
        let plain = || {
            let at = object::field(&text, "error").map(|at| at.slice(&text));
            at.and_then(era_error::error_code)
                .map_or(StatusCode::OK, http_status::status_for_code)
        };
        let status = too_much.map_or_else(plain, |_| StatusCode::TOO_MANY_REQUESTS);
        let text = match failed {
            CallError::UnknownResource { uri } => self.to_modern_not_found(&text, uri),
            _ => text,
        };
        ModernResponse {
            response: text,
            status,
            too_many_requests: too_much,
        }
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
    let inside = reply
        .response
        .get(reply.body_at.clone())
        .unwrap_or_default();
    let is_error =
        || object::field(inside, "isError").is_some_and(|at| at.slice(inside) == b"true");
    reply.body_kind == BodyKind::Error || is_error()
}
