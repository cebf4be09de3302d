//! Calls: from the caller's bytes to the host, and back as this era has them.

use std::sync::Arc;

use bowline_core::call::{Body, Call, Reply, Subject};
use bowline_core::caller::{CallerEnd, Deaf, SessionKey};
use bowline_core::era::{Era, Stateless};
use bowline_wire::mcp::code;
use bowline_wire::object;
use bytes::Bytes;
use http::StatusCode;

use super::read::Asked;
use super::result::{NOT_KEPT, complete, server_info};
use super::status;
use crate::edge::body::{self, Answer};
use crate::edge::mcp::call::{Ask, read_params};
use crate::edge::mcp::{error, outbox, result};
use crate::edge::{errors, trace};

/// Answers a request that a server answers.
pub(super) async fn answer(asked: Asked<'_>, ask: Ask) -> Answer {
    let id = Bytes::copy_from_slice(asked.id());
    let params = asked.message.params_span().map_or_else(Bytes::new, |at| {
        asked.message.bytes().slice(at.start..at.end)
    });
    let Some(named) = read_params(&params, ask) else {
        let refused = error(Some(&id), code::INVALID_PARAMS, ask.missing());
        return body::json(StatusCode::OK, refused);
    };
    let caller = asked.caller;
    let meta = named.meta.map(|at| at.of(&params));
    let said = trace::read(&caller.parts.headers, meta);
    let end = Arc::new(Deaf(SessionKey(0))) as Arc<dyn CallerEnd>;
    let call = Call {
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        subject: named.subject,
        name_at: named.name_at,
        makes_task: named.makes_task,
        progress_at: named.progress_at,
        id: id.clone(),
        deadline: None,
        caller: Some(end),
        trace: caller.edge.traces.tracer.place(said),
        run: None,
        key: None,
        stateless: Some(Box::new(Stateless {
            claims: asked.claims.clone(),
            retried: false,
        })),
        params,
    };
    if let Subject::Resource(uri) = &call.subject
        && outbox::is_ours(uri)
    {
        let read = outbox::read(caller.edge, caller.principal, uri, &id).await;
        return own(&asked, read);
    }
    match caller.edge.host.call(&call).await {
        Ok(reply) => written(&asked, ask, reply),
        Err(failed) => {
            let text = errors::answer(&id, &failed);
            body::json(StatusCode::OK, text)
        }
    }
}

fn written(asked: &Asked<'_>, ask: Ask, reply: Reply) -> Answer {
    let inside = reply.answer.slice(reply.body_at.clone());
    match (reply.body, reply.era) {
        (Body::Error, _) => {
            let number = object::field(&inside, "code").map(|at| at.of(&inside));
            let number = number.and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
            body::json(number.map_or(StatusCode::OK, status::of), reply.answer)
        }
        (Body::Result, Era::Modern) => body::json(StatusCode::OK, reply.answer),
        (Body::Result, Era::Legacy) => {
            let keep = (ask == Ask::Resource).then_some(NOT_KEPT);
            let whole = complete(&inside, &server_info(asked), keep);
            body::json(StatusCode::OK, result(asked.id(), &whole))
        }
    }
}

/// Completes what the gateway itself answers to `resources/read`.
fn own(asked: &Asked<'_>, read: Bytes) -> Answer {
    let Some(at) = object::field(&read, "result") else {
        return body::json(StatusCode::OK, read);
    };
    let whole = complete(at.of(&read), &server_info(asked), Some(NOT_KEPT));
    body::json(StatusCode::OK, result(asked.id(), &whole))
}
