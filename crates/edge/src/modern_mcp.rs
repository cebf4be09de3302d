//! Modern era (2026-07-28): stateless requests, each complete in itself.

mod modern_lists;
pub(super) mod modern_tasks;
mod server_discover;
pub(super) mod sessionless_clients;
pub(super) mod subscriptions_listen;

use std::sync::{Arc, Mutex};

use bowline_core::call::TaskOperation;
use bowline_core::client_handle::ClientCapabilities;
use bowline_core::era::HeaderClaim;
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_host::catalog::ListKind;
use bowline_wire::era::request_meta::{RequestMeta, parse_capabilities};
use bowline_wire::jsonrpc::{MessageError, write_error};
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::splice::write_string;
use bowline_wire::{ByteSpan, MessageKind, RpcMessage, object};
use bytes::Bytes;
use http::StatusCode;

use super::Edge;
use super::call::call_params::CallKind;
use super::call::modern_call;
use super::call::modern_call_handle::ModernCallHandle;
use super::call::parked_calls::ParkedCallTable;
use super::mcp::{McpCaller, era_headers, error_http_response, error_response};
use super::response_body::{self, EdgeResponse};
use modern_tasks::TaskWaiters;
use sessionless_clients::SessionlessClients;

/// State shared by all calls without a session.
#[derive(Debug)]
pub(crate) struct ModernCalls {
    /// Recently active clients.
    pub(crate) clients: SessionlessClients,
    /// Calls waiting for input from their clients.
    pub(crate) parked: Mutex<ParkedCallTable<Arc<ModernCallHandle>>>,
    /// Pending `tasks/result` requests on behalf of polling clients.
    pub(crate) task_waiters: TaskWaiters,
    /// Random id of this process; tells its parked calls from an earlier process's.
    pub(crate) boot_id: u64,
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
    pub(crate) fn sweep(&self, edge: &Edge) {
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
    pub(crate) fn cancel_by_credential(&self, edge: &Edge, credential: &str) {
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

/// Handles a message of the modern era.
pub(super) async fn handle_message(caller: McpCaller<'_>, message: &RpcMessage) -> EdgeResponse {
    // Contexts set for all sessions also apply to clients without a session.
    let principal = caller.edge.sessions.narrow_principal(caller.principal);
    let caller = caller.with_principal(&principal);
    match message.kind() {
        MessageKind::Request => handle_request(caller, message).await,
        MessageKind::Notification => {
            match era_headers::reject_notification_mismatch(&caller.parts.headers, message) {
                Some(refused) => refused,
                // A modern client cancels a request by closing its response stream.
                None => response_body::empty_response(StatusCode::ACCEPTED),
            }
        }
        MessageKind::Response => {
            let text = "questions are answered in the parameters of a request";
            error_http_response(StatusCode::BAD_REQUEST, None, code::INVALID_REQUEST, text)
        }
    }
}

async fn handle_request(caller: McpCaller<'_>, message: &RpcMessage) -> EdgeResponse {
    let checked = match check_request(caller, message) {
        Ok(checked) => checked,
        Err(refused) => return refused.to_response(message.id()),
    };
    if let Some(kind) = ListKind::ALL
        .into_iter()
        .find(|kind| kind.method() == checked.method)
    {
        return modern_lists::handle_list(checked, kind).await;
    }
    if let Some(ask) = call_kind(checked.method) {
        return modern_call::handle_call(checked, ask).await;
    }
    if let Some(verb) = task_operation(checked.method) {
        return Box::pin(modern_tasks::handle_task(checked, verb)).await;
    }
    match checked.method {
        method::DISCOVER => server_discover::handle_discover(checked).await,
        method::SUBSCRIPTIONS_LISTEN => match modern_tasks::reject_task_ids(&checked) {
            Some(refused) => refused,
            None => Box::pin(subscriptions_listen::open_stream(checked)).await,
        },
        _ => ModernRequestError::Method.to_response(message.id()),
    }
}

/// Returns the call kind of a method, if the modern era has the method.
fn call_kind(method: &str) -> Option<CallKind> {
    match method {
        method::TOOLS_CALL => Some(CallKind::Tool),
        method::PROMPTS_GET => Some(CallKind::Prompt),
        method::RESOURCES_READ => Some(CallKind::Resource),
        method::COMPLETION_COMPLETE => Some(CallKind::Complete),
        _ => None,
    }
}

/// Returns the task operation of a method.
fn task_operation(method: &str) -> Option<TaskOperation> {
    match method {
        method::TASKS_GET => Some(TaskOperation::Get),
        method::TASKS_UPDATE => Some(TaskOperation::Update),
        method::TASKS_CANCEL => Some(TaskOperation::Cancel),
        _ => None,
    }
}

/// Returns the response to a body that is not a single message.
pub(super) fn bad_request_response(refused: Bytes) -> EdgeResponse {
    response_body::json_response(StatusCode::BAD_REQUEST, refused)
}

/// Refuses a batch.
pub(super) fn batch_refusal() -> EdgeResponse {
    let text = MessageError::Batch.to_string();
    bad_request_response(error_response(None, code::INVALID_REQUEST, &text))
}

/// Refuses an HTTP method unused in the modern era.
pub(super) fn method_not_allowed() -> EdgeResponse {
    super::mcp::method_not_allowed("POST")
}

/// Supported methods of the modern era.
const MODERN_METHODS: [&str; 13] = [
    method::DISCOVER,
    method::TOOLS_LIST,
    method::TOOLS_CALL,
    method::PROMPTS_LIST,
    method::PROMPTS_GET,
    method::RESOURCES_LIST,
    method::RESOURCES_TEMPLATES_LIST,
    method::RESOURCES_READ,
    method::COMPLETION_COMPLETE,
    method::SUBSCRIPTIONS_LISTEN,
    method::TASKS_GET,
    method::TASKS_UPDATE,
    method::TASKS_CANCEL,
];

/// A validated request.
#[derive(Debug)]
pub(crate) struct ModernRequest<'a> {
    /// Caller and endpoint.
    pub(crate) caller: McpCaller<'a>,
    /// The complete message.
    pub(crate) message: &'a RpcMessage,
    /// The method.
    pub(crate) method: &'a str,
    /// Capabilities of the client.
    pub(crate) abilities: ClientCapabilities,
    /// Span of the client's capabilities within the parameters.
    pub(crate) capabilities_at: ByteSpan,
    /// Span of the client info within the parameters, if present.
    pub(crate) client_info_at: Option<ByteSpan>,
    /// Minimum log level; no log messages if absent.
    pub(crate) log_level: Option<LogLevel>,
    /// Arguments claimed in headers; absent for requests without headers of their own.
    pub(crate) claims: Option<Vec<HeaderClaim>>,
}

impl ModernRequest<'_> {
    /// Returns the request id as written.
    pub(crate) fn id(&self) -> &[u8] {
        self.message.id().unwrap_or(b"null")
    }

    /// Returns the parameters.
    pub(crate) fn params(&self) -> &[u8] {
        self.message.params().unwrap_or_default()
    }
}

/// Reason for rejecting a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModernRequestError {
    /// This header contradicts the body.
    Header(&'static str),
    /// A required `_meta` member is missing.
    Meta(&'static str),
    /// Unsupported revision.
    Version(String),
    /// Unknown method.
    Method,
}

impl ModernRequestError {
    /// Returns the error response.
    pub(crate) fn to_response(&self, id: Option<&[u8]>) -> EdgeResponse {
        let mut data = None;
        let (status, number, text) = match self {
            Self::Header(name) => (
                StatusCode::BAD_REQUEST,
                code::HEADER_MISMATCH,
                format!("the header {name} must stand once and say what the body says"),
            ),
            Self::Meta(key) => (
                StatusCode::BAD_REQUEST,
                code::INVALID_PARAMS,
                format!("every request needs {key} in params._meta"),
            ),
            Self::Version(requested) => {
                data = Some(version_error_data(requested));
                (
                    StatusCode::BAD_REQUEST,
                    code::UNSUPPORTED_VERSION,
                    "this revision of the protocol is not spoken here".to_owned(),
                )
            }
            Self::Method => (
                StatusCode::NOT_FOUND,
                code::METHOD_NOT_FOUND,
                "this gateway does not serve that method".to_owned(),
            ),
        };
        let mut out = Vec::new();
        write_error(&mut out, id, number, &text, data.as_deref());
        response_body::json_response(status, out)
    }
}

fn version_error_data(requested: &str) -> Vec<u8> {
    let mut out = Vec::from(&b"{\"supported\":"[..]);
    write_supported_versions(&mut out);
    out.extend_from_slice(b",\"requested\":");
    write_string(&mut out, requested);
    out.push(b'}');
    out
}

/// Writes the supported revisions, latest first.
pub(crate) fn write_supported_versions(out: &mut Vec<u8>) {
    for (nth, revision) in Revision::ALL.into_iter().rev().enumerate() {
        out.push(if nth == 0 { b'[' } else { b',' });
        write_string(out, revision.as_str());
    }
    out.push(b']');
}

/// Validates a request, reporting faults in this order: headers, parameters, revision, method.
fn check_request<'a>(
    caller: McpCaller<'a>,
    message: &'a RpcMessage,
) -> Result<ModernRequest<'a>, ModernRequestError> {
    let params = message.params().unwrap_or_default();
    let request_meta = RequestMeta::parse(params);
    let claims = era_headers::check_headers(
        &caller.parts.headers,
        message,
        request_meta.version.as_deref(),
    )?;
    let Some(version) = request_meta.version else {
        return Err(ModernRequestError::Meta(meta::PROTOCOL_VERSION));
    };
    let is_object = |at: &ByteSpan| at.slice(params).starts_with(b"{");
    let Some(capabilities) = request_meta.capabilities.filter(is_object) else {
        return Err(ModernRequestError::Meta(meta::CLIENT_CAPABILITIES));
    };
    let level = match request_meta.log_level {
        None => None,
        Some(at) => {
            let word = object::parse_string(at.slice(params));
            let level = word.as_deref().and_then(LogLevel::parse);
            Some(level.ok_or(ModernRequestError::Meta(
                "a level of the protocol where it has a logLevel",
            ))?)
        }
    };
    if Revision::parse(&version) != Some(Revision::LATEST) {
        return Err(ModernRequestError::Version(version.into_owned()));
    }
    let method = message.method().unwrap_or_default();
    if !MODERN_METHODS.contains(&method) {
        return Err(ModernRequestError::Method);
    }
    Ok(ModernRequest {
        caller,
        message,
        method,
        abilities: parse_capabilities(capabilities.slice(params)),
        capabilities_at: capabilities,
        client_info_at: request_meta.client_info.filter(is_object),
        log_level: level,
        claims,
    })
}
