//! Opens a session: agrees on a revision and says what this gateway can do.

use std::sync::Arc;

use bowline_core::caller::{Abilities, Ability};
use bowline_wire::mcp::{Revision, code};
use bowline_wire::splice::write_string;
use bowline_wire::{Message, object};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::{Caller, error, failure, outbox, result};
use crate::edge::announce;
use crate::edge::body::{self, Answer, SESSION};
use crate::edge::modern::GATEWAY;
use crate::edge::session::{Session, Terms};

/// Answers `initialize` with a new session.
pub(super) async fn open(caller: Caller<'_>, message: &Message) -> Answer {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let Some(revision) = agree(params) else {
        return body::json(StatusCode::OK, no_revision(id));
    };
    caller.edge.host.settled().await;
    let session = caller.edge.open_session(Terms {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        revision,
        abilities: declared(params),
    });
    let header = session.and_then(|(id, _)| HeaderValue::from_str(&id).ok());
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
    caller.edge.host.settled().await;
    announce::knows(caller.edge, session);
    session.declare(declared(params));
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
    member(params, "capabilities").map_or_else(Abilities::default, abilities)
}

/// Reads capabilities for what a client can be asked for.
pub(in crate::edge) fn abilities(declared: &[u8]) -> Abilities {
    let mut abilities = Abilities::default();
    if let Some(sampling) = member(declared, "sampling") {
        abilities = abilities.with(Ability::Sampling);
        if member(sampling, "tools").is_some() {
            abilities = abilities.with(Ability::SamplingTools);
        }
    }
    if let Some(elicitation) = member(declared, "elicitation") {
        let url = member(elicitation, "url").is_some();
        if url {
            abilities = abilities.with(Ability::ElicitationUrl);
        }
        // Before there were two ways, an empty object meant a form; it still does.
        if member(elicitation, "form").is_some() || !url {
            abilities = abilities.with(Ability::ElicitationForm);
        }
    }
    if member(declared, "roots").is_some() {
        abilities = abilities.with(Ability::Roots);
    }
    abilities
}

/// Returns a member that is an object.
fn member<'a>(of: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let value = object::field(of, key)?.of(of);
    (value.first() == Some(&b'{')).then_some(value)
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
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abilities_are_what_the_client_declares() {
        use Ability::{ElicitationForm, ElicitationUrl, Roots, Sampling, SamplingTools};
        for (said, want) in [
            ("{}", &[][..]),
            (r#"{"sampling":{}}"#, &[Sampling]),
            (r#"{"sampling":{"tools":{}}}"#, &[Sampling, SamplingTools]),
            (r#"{"elicitation":{}}"#, &[ElicitationForm]),
            (r#"{"elicitation":{"form":{}}}"#, &[ElicitationForm]),
            (r#"{"elicitation":{"url":{}}}"#, &[ElicitationUrl]),
            (
                r#"{"elicitation":{"url":{},"form":{}}}"#,
                &[ElicitationForm, ElicitationUrl],
            ),
            (r#"{"roots":{"listChanged":true}}"#, &[Roots]),
            (r#"{"roots":null,"sampling":false,"elicitation":[]}"#, &[]),
        ] {
            let params = format!(r#"{{"capabilities":{said}}}"#);
            let want = want
                .iter()
                .fold(Abilities::default(), |all, one| all.with(*one));
            assert_eq!(declared(params.as_bytes()), want, "{said}");
        }
        assert_eq!(declared(b"{}"), Abilities::default());
        assert_eq!(declared(b""), Abilities::default());
    }
}
