//! Batches, which one revision had: several messages in, several answers out.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bowline_core::caller::CallerEnd;
use bowline_wire::jsonrpc::Refusal;
use bowline_wire::mcp::{Revision, code, method};
use bowline_wire::{Kind, Message};
use bytes::Bytes;
use http::StatusCode;

use super::call::{self, Ask, Outcome, Running};
use super::{
    Caller, failure, headers, heard, local, no_session, parse, read, refuse_unknown, session,
};
use crate::edge::body::{self, Answer, REVISION};
use crate::edge::modern::Says;
use crate::edge::pace;
use crate::edge::session::{CallEnd, Session};

/// Messages of one batch.
const MESSAGES_MAX: usize = 100;

/// One message of a batch, and how it is answered.
enum Part {
    /// At once.
    Done(Bytes),
    /// When its server answers.
    Runs(Running),
}

/// Answers a batch, where the session's revision has them.
pub(super) async fn answer(caller: Caller<'_>, text: Bytes) -> Answer {
    if let Some(refused) = refuse_unknown(Says::of(&caller.parts.headers), None) {
        return refused;
    }
    let session = match session(caller) {
        Ok(session) if takes_batches(caller, &session) => session,
        // A batch that may hold `initialize` has no session to look at.
        Ok(_) | Err(StatusCode::BAD_REQUEST) => return read::refused(&text, Refusal::Batch),
        Err(status) => return no_session(status, None),
    };
    let asker = session.asker_of(caller.principal);
    let caller = caller.narrowed(&asker);
    let invalid = |message| failure(StatusCode::OK, None, code::INVALID_REQUEST, message);
    let items = match parse::batch(caller, &text, MESSAGES_MAX).await {
        Ok(items) => items,
        Err(busy) => return busy,
    };
    if items.is_empty() {
        return invalid("the batch is empty");
    }
    if items.len() > MESSAGES_MAX {
        return invalid("the batch holds more than 100 messages");
    }
    if let Err(refused) = pace::admit_batch(caller.edge, caller.principal, items.len()).await {
        return refused;
    }
    let messages = || {
        items
            .iter()
            .filter_map(|(_, message)| message.as_ref().ok())
    };
    if messages().any(|message| message.method() == Some(method::INITIALIZE)) {
        return invalid("initialize must not be part of a batch");
    }
    let lie = messages().find_map(|message| headers::refuse_lies(&caller.parts.headers, message));
    if let Some(lie) = lie {
        return lie;
    }
    let end = end_of(caller, &session, messages());
    let mut parts = Vec::new();
    for (item, message) in &items {
        match message {
            Ok(message) => parts.extend(part(caller, &session, message, end.as_ref()).await),
            Err(refusal) => parts.push(Part::Done(read::refusal_of(item, *refusal))),
        }
    }
    if parts.is_empty() {
        return body::empty(StatusCode::ACCEPTED);
    }
    call::answer(caller.edge, Box::pin(all(parts)), end).await
}

fn takes_batches(caller: Caller<'_>, session: &Session) -> bool {
    let only = Revision::V2025_03_26;
    let mut said = caller.parts.headers.get_all(REVISION).iter();
    session.revision == only && said.all(|said| said.as_bytes() == only.as_str().as_bytes())
}

/// Returns the caller's end of all calls together, for a caller that takes a stream.
fn end_of<'a>(
    caller: Caller<'_>,
    session: &Arc<Session>,
    messages: impl Iterator<Item = &'a Message>,
) -> Option<Arc<CallEnd>> {
    if !read::accepts(caller.parts, "text/event-stream") {
        return None;
    }
    let mut ids = messages.filter_map(|message| message.id().map(Bytes::copy_from_slice));
    let first = ids.next()?;
    Some(CallEnd::new(session, first, ids.collect()))
}

/// Judges one message like one that comes alone; `None` when it wants no answer.
async fn part(
    caller: Caller<'_>,
    session: &Arc<Session>,
    message: &Message,
    end: Option<&Arc<CallEnd>>,
) -> Option<Part> {
    if message.kind() != Kind::Request {
        heard(caller, session, message);
        return None;
    }
    let Some(ask) = message.method().and_then(Ask::of) else {
        return Some(Part::Done(local::answer(caller, session, message).await));
    };
    let told: Arc<dyn CallerEnd> = match end {
        Some(end) => Arc::clone(end) as Arc<dyn CallerEnd>,
        None => session.without_stream(),
    };
    Some(match call::begin(caller, session, message, ask, told) {
        Ok(running) => Part::Runs(running),
        Err(refused) => Part::Done(refused),
    })
}

/// Waits for all answers, side by side, and writes them as one array.
async fn all(mut parts: Vec<Part>) -> Outcome {
    poll_fn(|cx| {
        let mut waits = false;
        for part in &mut parts {
            if let Part::Runs(running) = part {
                match running.as_mut().poll(cx) {
                    // One of many is refused in its own answer only.
                    Poll::Ready(outcome) => *part = Part::Done(outcome.answer),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    let mut out = Vec::from(&b"["[..]);
    for part in parts {
        if let Part::Done(answer) = part {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(&answer);
        }
    }
    out.push(b']');
    Bytes::from(out).into()
}
