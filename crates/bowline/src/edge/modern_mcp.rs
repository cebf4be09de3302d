//! Modern era (2026-07-28): stateless requests, each complete in itself.

mod modern_headers;
mod modern_lists;
pub(super) mod modern_tasks;
pub(super) mod request_check;
mod server_discover;
pub(super) mod sessionless_clients;
pub(super) mod subscriptions_listen;

use std::sync::{Arc, Mutex};

use bowline_core::call::TaskOperation;
use bowline_core::sync::lock;
use bowline_host::catalog::ListKind;
use bowline_wire::jsonrpc::MessageError;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::{MessageKind, RpcMessage, object};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::Edge;
use super::call::call_params::CallKind;
use super::call::modern_call;
use super::call::modern_call_handle::ModernCallHandle;
use super::call::parked_calls::ParkedCallTable;
use super::mcp::{McpCaller, error_http_response, error_response};
use super::response_body::{self, EdgeResponse, REVISION_HEADER, SESSION_HEADER};
use modern_tasks::TaskWaiters;
use sessionless_clients::SessionlessClients;

/// State shared by all calls without a session.
#[derive(Debug)]
pub(in crate::edge) struct ModernCalls {
    /// Recently active clients.
    pub(in crate::edge) clients: SessionlessClients,
    /// Calls waiting for input from their clients.
    pub(in crate::edge) parked: Mutex<ParkedCallTable<Arc<ModernCallHandle>>>,
    /// Pending `tasks/result` requests on behalf of polling clients.
    pub(in crate::edge) task_waiters: TaskWaiters,
    /// Random id of this process; tells its parked calls from an earlier process's.
    pub(in crate::edge) boot_id: u64,
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

/// Era given by the `MCP-Protocol-Version` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionHeader {
    /// No header.
    Absent,
    /// A revision with a handshake.
    Legacy,
    /// The stateless revision, possibly among further values.
    Modern,
    /// An unknown revision.
    Unknown,
}

impl VersionHeader {
    /// Parses all values of the header.
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let mut version = Self::Absent;
        for value in headers.get_all(REVISION_HEADER) {
            let revision = value.to_str().ok().and_then(Revision::parse);
            version = match (version, revision) {
                (_, Some(Revision::V2026_07_28)) => return Self::Modern,
                (Self::Absent | Self::Legacy, Some(_)) => Self::Legacy,
                (_, _) => Self::Unknown,
            };
        }
        version
    }
}

/// Returns whether a message is modern. A message with a session id is legacy unless the header
/// says modern, and `initialize` starts a legacy session.
pub(super) fn is_modern(headers: &HeaderMap, version: VersionHeader, message: &RpcMessage) -> bool {
    let method_name = message.method();
    match version {
        VersionHeader::Modern => true,
        VersionHeader::Legacy => is_modern_only(message) && !headers.contains_key(SESSION_HEADER),
        _ if method_name == Some(method::INITIALIZE) || headers.contains_key(SESSION_HEADER) => {
            false
        }
        VersionHeader::Unknown => true,
        VersionHeader::Absent => is_modern_only(message) || has_version_meta(message),
    }
}

/// Returns whether a request method exists only in the modern era.
fn is_modern_only(message: &RpcMessage) -> bool {
    let method_name = message.method();
    message.kind() == MessageKind::Request
        && matches!(
            method_name,
            Some(method::DISCOVER | method::SUBSCRIPTIONS_LISTEN)
        )
}

/// Returns whether `_meta` carries a protocol version.
fn has_version_meta(message: &RpcMessage) -> bool {
    let params = message.params().unwrap_or_default();
    let within = object::field(params, "_meta").map(|at| at.slice(params));
    within.is_some_and(|within| object::field(within, meta::PROTOCOL_VERSION).is_some())
}

/// Handles a message of the modern era.
pub(super) async fn handle_message(caller: McpCaller<'_>, message: &RpcMessage) -> EdgeResponse {
    // Contexts set for all sessions also apply to clients without a session.
    let principal = caller.edge.sessions.narrow_principal(caller.principal);
    let caller = caller.with_principal(&principal);
    match message.kind() {
        MessageKind::Request => handle_request(caller, message).await,
        MessageKind::Notification => {
            match modern_headers::reject_mismatch(&caller.parts.headers, message) {
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
    let checked = match request_check::check_request(caller, message) {
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
        _ => request_check::ModernRequestError::Method.to_response(message.id()),
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

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn header_map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    const MODERN: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
    const LEGACY: (&str, &str) = ("mcp-protocol-version", "2025-11-25");
    const UNKNOWN: (&str, &str) = ("mcp-protocol-version", "x");

    #[test]
    fn version_header_selects_era() {
        for (headers, want) in [
            (&[][..], VersionHeader::Absent),
            (&[LEGACY], VersionHeader::Legacy),
            (&[LEGACY, LEGACY], VersionHeader::Legacy),
            (&[MODERN], VersionHeader::Modern),
            (&[LEGACY, MODERN], VersionHeader::Modern),
            (&[UNKNOWN, MODERN], VersionHeader::Modern),
            (&[UNKNOWN], VersionHeader::Unknown),
            (&[UNKNOWN, LEGACY], VersionHeader::Unknown),
            (&[LEGACY, UNKNOWN], VersionHeader::Unknown),
            (
                &[("mcp-protocol-version", "2026-07-28 ")],
                VersionHeader::Unknown,
            ),
        ] {
            assert_eq!(
                VersionHeader::from_headers(&header_map(headers)),
                want,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn session_requests_are_not_modern() {
        const SESSION: (&str, &str) = ("mcp-session-id", "s");
        let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        let open = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        let probe = r#"{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}"#;
        let note = r#"{"jsonrpc":"2.0","method":"server/discover","params":{}}"#;
        let told = concat!(
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":"#,
            r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        for (headers, body, want) in [
            (&[][..], list, false),
            (&[], probe, true),
            (&[], note, false),
            (&[], told, true),
            (&[SESSION], told, false),
            (&[SESSION], probe, false),
            (&[LEGACY], list, false),
            (&[LEGACY], told, false),
            (&[LEGACY], probe, true),
            (&[LEGACY, SESSION], probe, false),
            (&[MODERN], open, true),
            (&[MODERN, SESSION], list, true),
            (&[UNKNOWN], list, true),
            (&[UNKNOWN], open, false),
            (&[UNKNOWN, SESSION], list, false),
        ] {
            let headers = header_map(headers);
            let message = RpcMessage::parse_from_client(body.into()).unwrap();
            let says = VersionHeader::from_headers(&headers);
            assert_eq!(is_modern(&headers, says, &message), want, "{headers:?}");
        }
    }
}
