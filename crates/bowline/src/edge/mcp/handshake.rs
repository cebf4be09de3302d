//! Opens a session: agrees on a revision and says what this gateway can do.

use std::sync::Arc;

use bowline_core::caller::Abilities;
use bowline_wire::era::meta::abilities;
use bowline_wire::mcp::{Revision, code};
use bowline_wire::splice::write_string;
use bowline_wire::{Message, object};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::{Caller, error, failure, outbox, over_share, result};
use crate::edge::announce;
use crate::edge::body::{self, Answer, SESSION};
use crate::edge::modern::GATEWAY;
use crate::edge::session::{OpenError, Session, Terms};

/// Answers `initialize` with a new session.
pub(super) async fn open(caller: Caller<'_>, message: &Message) -> Answer {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let Some(revision) = agree(params) else {
        return body::json(StatusCode::OK, no_revision(id));
    };
    let host = &caller.edge.host;
    host.introduced(caller.principal, caller.scope).await;
    let session = caller.edge.open_session(Terms {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        revision,
        abilities: declared(params),
    });
    if let Err(OpenError::Share(cause)) = session {
        return over_share(Some(id), cause);
    }
    let header = session.ok().and_then(|(id, session)| {
        session.note_client(params);
        HeaderValue::from_str(&id).ok()
    });
    let Some(header) = header else {
        let message = "no session could be opened";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return failure(status, Some(id), code::INTERNAL, message);
    };
    let introduction = result(id, &introduce(caller, revision));
    let mut answer = body::json(StatusCode::OK, introduction);
    answer.headers_mut().insert(SESSION, header);
    answer
}

/// Answers `initialize` of a session that its stream has opened.
pub(super) async fn greet(caller: Caller<'_>, session: &Session, message: &Message) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let Some(revision) = agree(params) else {
        return no_revision(id);
    };
    let host = &caller.edge.host;
    host.introduced(caller.principal, caller.scope).await;
    announce::knows(caller.edge, session);
    session.declare(declared(params));
    session.note_client(params);
    result(id, &introduce(caller, revision))
}

/// Returns the revision to speak. An unknown one is answered with our latest; the caller decides
/// whether that will do.
fn agree(params: &[u8]) -> Option<Revision> {
    let asked = object::field(params, "protocolVersion")?;
    let asked = object::string(asked.of(params))?;
    Some(Revision::parse_legacy(&asked).unwrap_or(Revision::LATEST_LEGACY))
}

fn no_revision(id: &[u8]) -> Bytes {
    let message = "initialize needs a protocolVersion";
    error(Some(id), code::INVALID_PARAMS, message)
}

/// Reads what a client can be asked for.
fn declared(params: &[u8]) -> Abilities {
    match object::field(params, "capabilities") {
        Some(declared) => abilities(declared.of(params)),
        None => Abilities::default(),
    }
}

/// Writes the result of `initialize`. A single server is introduced by its own words.
fn introduce(caller: Caller<'_>, revision: Revision) -> Vec<u8> {
    let own = caller
        .edge
        .host
        .introduction(caller.principal, caller.scope);
    let capabilities = outbox::declare(caller.edge, caller.scope, own.capabilities);
    let mut out = Vec::from(&b"{\"protocolVersion\":"[..]);
    write_string(&mut out, revision.as_str());
    out.extend_from_slice(b",\"capabilities\":");
    out.extend_from_slice(&capabilities);
    out.extend_from_slice(b",\"serverInfo\":");
    match own.server_info {
        Some(info) => out.extend_from_slice(&info),
        None => out.extend_from_slice(GATEWAY.as_bytes()),
    }
    if let Some(words) = own.instructions {
        out.extend_from_slice(b",\"instructions\":");
        out.extend_from_slice(&words);
    }
    if let Some(meta) = own.meta {
        out.extend_from_slice(b",\"_meta\":");
        out.extend_from_slice(&meta);
    }
    out.push(b'}');
    out
}
