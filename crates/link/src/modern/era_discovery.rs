//! `server/discover`: its request, and the classification of its response.

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientCapabilities;
use bowline_core::era::Era;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::object::{field, items, parse_string, text_field};
use bowline_wire::{MemberList, ObjectEditor};
use bytes::Bytes;
use tokio::time::Instant;

use super::era_params;
use crate::link::{LinkRequest, ServerInfo};
use crate::stdio::ClientInfo;

/// Outcome of `server/discover`.
#[derive(Debug)]
pub(crate) enum DiscoverOutcome {
    /// A modern server with a supported revision.
    Modern(ServerInfo),
    /// A modern server that rejects the client.
    Refused {
        /// JSON-RPC code.
        code: i64,
        /// Error message.
        message: String,
    },
    /// The server needs a handshake: it does not know the method, or no supported modern revision.
    Legacy,
}

/// Returns the `server/discover` request.
pub(crate) fn discover_request(client: &ClientInfo, deadline: Instant) -> LinkRequest {
    let mut request = LinkRequest::new_internal(method::DISCOVER, Bytes::new(), deadline);
    era_params::to_modern(&mut request, client, ClientCapabilities::default());
    request
}

/// Parses the response to `server/discover`.
pub(crate) fn parse_discover_response(response: &ServerResponse) -> DiscoverOutcome {
    let body = response.body_bytes();
    match response.body {
        BodyKind::Error => classify_error(body),
        BodyKind::Result => match supports_modern(body, "supportedVersions") {
            true => DiscoverOutcome::Modern(server_info(body)),
            false => DiscoverOutcome::Legacy,
        },
    }
}

/// Whether only modern servers send this error code.
pub(crate) const fn is_modern_error_code(code: i64) -> bool {
    matches!(
        code,
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION
    )
}

fn classify_error(error: &[u8]) -> DiscoverOutcome {
    let code = field(error, "code").and_then(|at| {
        let digits = std::str::from_utf8(at.slice(error)).ok()?;
        digits.parse().ok()
    });
    let Some(code) = code.filter(|code| is_modern_error_code(*code)) else {
        return DiscoverOutcome::Legacy;
    };
    let data = field(error, "data").map_or(&b""[..], |at| at.slice(error));
    if code == code::UNSUPPORTED_VERSION && !supports_modern(data, "supported") {
        return DiscoverOutcome::Legacy;
    }
    DiscoverOutcome::Refused {
        code,
        message: text_field(error, "message")
            .unwrap_or_default()
            .into_owned(),
    }
}

/// Whether a list of revisions contains a supported modern revision.
fn supports_modern(object: &[u8], key: &str) -> bool {
    let Some(list) = field(object, key).map(|at| at.slice(object)) else {
        return false;
    };
    let mut named = items(list).filter_map(|at| parse_string(at.slice(list)));
    named.any(|name| Revision::parse(&name).is_some_and(|revision| revision.era() == Era::Modern))
}

fn server_info(result: &[u8]) -> ServerInfo {
    let meta = field(result, "_meta").map_or(&b""[..], |at| at.slice(result));
    let identity = field(meta, meta::SERVER_INFO).map_or(&b""[..], |at| at.slice(meta));
    ServerInfo {
        revision: Revision::LATEST,
        name: text_field(identity, "name").unwrap_or_default().into(),
        version: text_field(identity, "version").unwrap_or_default().into(),
        initialize: lift_server_info(result, identity),
    }
}

/// Copies the server identity from `_meta` to the `serverInfo` member of the legacy result.
fn lift_server_info(result: &[u8], identity: &[u8]) -> Bytes {
    let mut editor = ObjectEditor::new(result);
    if !identity.is_empty() && field(result, "serverInfo").is_none() {
        let member = MemberList::from_member("serverInfo", identity);
        editor.insert_first(editor.whole(), member);
    }
    editor.finish().into()
}
