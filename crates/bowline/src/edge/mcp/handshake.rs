//! Opens a session: agrees on a revision and says what this gateway can do.

use bowline_core::call::Scope;
use bowline_host::catalog::ListKind;
use bowline_wire::mcp::{Revision, code};
use bowline_wire::splice::write_string;
use bowline_wire::{Message, object};
use http::{HeaderValue, StatusCode};

use super::{Caller, failure, result};
use crate::edge::body::{Answer, SESSION};

/// Answers `initialize`.
pub(super) async fn open(caller: Caller<'_>, message: &Message) -> Answer {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let asked =
        object::field(params, "protocolVersion").and_then(|at| object::string(at.of(params)));
    let Some(asked) = asked else {
        let message = "initialize needs a protocolVersion";
        return failure(StatusCode::OK, Some(id), code::INVALID_PARAMS, message);
    };
    // An unknown revision is answered with our latest; the caller decides whether that will do.
    let revision = Revision::parse(&asked).unwrap_or(Revision::LATEST_LEGACY);
    caller.edge.host.settled().await;
    let known = caller
        .edge
        .host
        .view(caller.principal, caller.scope, ListKind::Tools);
    let session = caller.edge.sessions.open(
        caller.principal,
        caller.scope,
        revision,
        known.fingerprint,
        caller.edge.host.clock().as_ref(),
    );
    let header = session.and_then(|session| HeaderValue::from_str(&session).ok());
    let Some(header) = header else {
        let message = "no session could be opened";
        return failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            Some(id),
            code::INTERNAL,
            message,
        );
    };
    let mut answer = result(id, &introduce(caller, revision));
    answer.headers_mut().insert(SESSION, header);
    answer
}

/// Writes the result of `initialize`. A single server is introduced by its own words.
fn introduce(caller: Caller<'_>, revision: Revision) -> Vec<u8> {
    let own = single(caller);
    let own = own.as_deref();
    let mut out = Vec::from(&b"{\"protocolVersion\":"[..]);
    write_string(&mut out, revision.as_str());
    out.extend_from_slice(b",\"capabilities\":{\"tools\":{\"listChanged\":true}},\"serverInfo\":");
    match own.and_then(|own| object::field(own, "serverInfo").map(|at| at.of(own))) {
        Some(info) => out.extend_from_slice(info),
        None => {
            out.extend_from_slice(b"{\"name\":\"bowline\",\"title\":\"Bowline\",\"version\":");
            write_string(&mut out, env!("CARGO_PKG_VERSION"));
            out.push(b'}');
        }
    }
    if let Some(words) = own.and_then(|own| object::field(own, "instructions").map(|at| at.of(own)))
    {
        out.extend_from_slice(b",\"instructions\":");
        out.extend_from_slice(words);
    }
    out.push(b'}');
    out
}

/// Returns what the endpoint's single server said of itself, if there is one and it serves.
fn single(caller: Caller<'_>) -> Option<bytes::Bytes> {
    match caller.scope {
        Scope::All => None,
        Scope::Server(server) => caller.edge.host.server(server).ok()?.introduction(),
    }
}
