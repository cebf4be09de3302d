//! Validates a modern request before any processing.

use bowline_core::client_handle::ClientCapabilities;
use bowline_core::era::HeaderClaim;
use bowline_core::log_level::LogLevel;
use bowline_wire::era::request_meta::{RequestMeta, parse_capabilities};
use bowline_wire::jsonrpc::write_error;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::splice::write_string;
use bowline_wire::{ByteSpan, RpcMessage, object};
use http::StatusCode;

use super::modern_headers;
use crate::edge::mcp::McpCaller;
use crate::edge::response_body::{self, EdgeResponse};

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
pub(super) fn write_supported_versions(out: &mut Vec<u8>) {
    for (nth, revision) in Revision::ALL.into_iter().rev().enumerate() {
        out.push(if nth == 0 { b'[' } else { b',' });
        write_string(out, revision.as_str());
    }
    out.push(b']');
}

/// Validates a request, reporting faults in this order: headers, parameters, revision, method.
pub(super) fn check_request<'a>(
    caller: McpCaller<'a>,
    message: &'a RpcMessage,
) -> Result<ModernRequest<'a>, ModernRequestError> {
    let params = message.params().unwrap_or_default();
    let request_meta = RequestMeta::parse(params);
    let claims = modern_headers::check_headers(
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
