//! The first words with a server that may be of the modern era.

use bowline_core::call::Body;
use bowline_core::caller::Abilities;
use bowline_core::era::Era;
use bowline_wire::Span;
use bowline_wire::mcp::{Revision, code, meta, method};
use bowline_wire::object::{field, items, string, text};
use bowline_wire::splice::replace;
use bytes::Bytes;
use tokio::time::Instant;

use super::params;
use crate::link::{Answer, Request, ServerInfo};
use crate::stdio::ClientInfo;

/// What the answer to the question says of a server.
#[derive(Debug)]
pub(crate) enum Found {
    /// It is of the modern era and speaks a revision that we speak.
    Modern(ServerInfo),
    /// It is of the modern era, and will not have us.
    Refused {
        /// The JSON-RPC code.
        code: i64,
        /// Its words.
        message: String,
    },
    /// It is to be met with a handshake: it does not know the question, or no modern revision
    /// that we speak.
    Legacy,
}

/// Returns `server/discover`.
pub(crate) fn request(client: &ClientInfo, deadline: Instant) -> Request {
    let mut request = Request::own(method::DISCOVER, None, deadline);
    params::to_modern(&mut request, client, Abilities::default());
    request
}

/// Reads the answer to `server/discover`.
pub(crate) fn read(answer: &Answer) -> Found {
    let body = answer.body_bytes();
    match answer.body {
        Body::Error => refusal(body),
        Body::Result => match speaks(body, "supportedVersions") {
            true => Found::Modern(info(body)),
            false => Found::Legacy,
        },
    }
}

/// Whether an error is one that only a server of the modern era gives.
pub(crate) const fn is_modern(code: i64) -> bool {
    matches!(
        code,
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION
    )
}

fn refusal(error: &[u8]) -> Found {
    let code = field(error, "code").and_then(|at| {
        let digits = std::str::from_utf8(at.of(error)).ok()?;
        digits.parse().ok()
    });
    let Some(code) = code.filter(|code| is_modern(*code)) else {
        return Found::Legacy;
    };
    let data = field(error, "data").map_or(&b""[..], |at| at.of(error));
    if code == code::UNSUPPORTED_VERSION && !speaks(data, "supported") {
        return Found::Legacy;
    }
    Found::Refused {
        code,
        message: text(error, "message").unwrap_or_default().into_owned(),
    }
}

/// Whether a list of revisions has one of the modern era that we speak.
fn speaks(object: &[u8], key: &str) -> bool {
    let Some(list) = field(object, key).map(|at| at.of(object)) else {
        return false;
    };
    let mut named = items(list).filter_map(|at| string(at.of(list)));
    named.any(|name| Revision::parse(&name).is_some_and(|known| known.era() == Era::Modern))
}

fn info(result: &[u8]) -> ServerInfo {
    let meta = field(result, "_meta").map_or(&b""[..], |at| at.of(result));
    let itself = field(meta, meta::SERVER_INFO).map_or(&b""[..], |at| at.of(meta));
    ServerInfo {
        revision: Revision::LATEST,
        name: text(itself, "name").unwrap_or_default().into(),
        version: text(itself, "version").unwrap_or_default().into(),
        initialize: lifted(result, itself),
    }
}

/// Returns the result with who the server is where `initialize` has it.
fn lifted(result: &[u8], itself: &[u8]) -> Bytes {
    let open = result.iter().position(|byte| *byte == b'{');
    let Some(open) = open.filter(|_| !itself.is_empty() && field(result, "serverInfo").is_none())
    else {
        return Bytes::copy_from_slice(result);
    };
    let start = open + 1;
    // There is at least `_meta` after it.
    let member = [b"\"serverInfo\":", itself, b","].concat();
    replace(result, Span { start, end: start }, &member).into()
}
