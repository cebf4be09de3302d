//! JSON-RPC batches, supported only by revision 2025-03-26.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bowline_wire::jsonrpc::MessageError;
use bowline_wire::mcp::{Revision, code, method};
use bowline_wire::{MessageKind, RpcMessage};
use bytes::Bytes;
use http::StatusCode;

use super::era_headers::VersionHeader;
use super::{
    McpCaller, era_headers, error_http_response, handle_one_way, local_requests,
    no_session_response, reject_unknown_revision, request_body, require_session,
};
use crate::call::call_params::CallKind;
use crate::call::{self, CallResponse, CallStream, ResponseFuture, session_call};
use crate::client_session::{ClientSession, SessionCallHandle};
use crate::http_listener;
use crate::response_body::{self, EdgeResponse, REVISION_HEADER};

/// Maximum number of messages in a batch.
const BATCH_MESSAGES_MAX: usize = 100;

/// A message of a batch with its response.
enum BatchPart {
    /// Response is ready.
    Done(Bytes),
    /// Call in flight.
    Running(ResponseFuture),
}

/// Handles a batch, if the session's revision supports batches.
pub(super) async fn handle_batch(caller: McpCaller<'_>, text: Bytes) -> EdgeResponse {
    if let Some(refused) =
        reject_unknown_revision(VersionHeader::from_headers(&caller.parts.headers), None)
    {
        return refused;
    }
    let session = match require_session(caller) {
        Ok(session) if supports_batches(caller, &session) => session,
        // A batch with `initialize` would have no session.
        Ok(_) | Err(StatusCode::BAD_REQUEST) => {
            return request_body::refusal_response(&text, MessageError::Batch);
        }
        Err(status) => return no_session_response(status, None),
    };
    let principal = session.principal_for(caller.principal);
    let caller = caller.with_principal(&principal);
    let invalid =
        |message| error_http_response(StatusCode::OK, None, code::INVALID_REQUEST, message);
    let items = match request_body::parse_batch(caller, &text, BATCH_MESSAGES_MAX).await {
        Ok(items) => items,
        Err(busy) => return busy,
    };
    if items.is_empty() {
        return invalid("the batch is empty");
    }
    if items.len() > BATCH_MESSAGES_MAX {
        return invalid("the batch holds more than 100 messages");
    }
    if let Err(refused) =
        http_listener::admit_batch(caller.edge, caller.principal, items.len()).await
    {
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
    let mismatch =
        messages().find_map(|message| era_headers::reject_mismatch(&caller.parts.headers, message));
    if let Some(mismatch) = mismatch {
        return mismatch;
    }
    let handle = batch_handle(caller, &session, messages());
    let mut parts = Vec::new();
    for (item, message) in &items {
        match message {
            Ok(message) => {
                parts.extend(handle_part(caller, &session, message, handle.as_ref()).await)
            }
            Err(refusal) => parts.push(BatchPart::Done(request_body::refusal_message(
                item, *refusal,
            ))),
        }
    }
    if parts.is_empty() {
        return response_body::empty_response(StatusCode::ACCEPTED);
    }
    let stream = handle.map(|handle| handle as Arc<dyn CallStream>);
    call::respond(caller.edge, Box::pin(join_parts(parts)), stream).await
}

fn supports_batches(caller: McpCaller<'_>, session: &ClientSession) -> bool {
    let only = Revision::V2025_03_26;
    let mut declared = caller.parts.headers.get_all(REVISION_HEADER).iter();
    session.revision == only
        && declared.all(|declared| declared.as_bytes() == only.as_str().as_bytes())
}

/// Returns the shared client handle of all calls in the batch, if the client accepts SSE.
fn batch_handle<'a>(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    messages: impl Iterator<Item = &'a RpcMessage>,
) -> Option<Arc<SessionCallHandle>> {
    if !request_body::accepts_type(caller.parts, "text/event-stream") {
        return None;
    }
    let mut ids = messages.filter_map(|message| message.id().map(Bytes::copy_from_slice));
    let first = ids.next()?;
    Some(SessionCallHandle::new(session, first, ids.collect()))
}

/// Handles a message like a single message; `None` if no response is due.
async fn handle_part(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    message: &RpcMessage,
    handle: Option<&Arc<SessionCallHandle>>,
) -> Option<BatchPart> {
    if message.kind() != MessageKind::Request {
        handle_one_way(caller, session, message);
        return None;
    }
    let Some(kind) = message.method().and_then(CallKind::from_method) else {
        return Some(BatchPart::Done(
            local_requests::handle_local(caller, session, message).await,
        ));
    };
    let client = session_call::client_handle(session, handle);
    Some(
        match session_call::start_call(caller, session, message, kind, client) {
            Ok(running) => BatchPart::Running(running),
            Err(refused) => BatchPart::Done(refused),
        },
    )
}

/// Waits for all responses concurrently and writes them as an array.
async fn join_parts(mut parts: Vec<BatchPart>) -> CallResponse {
    poll_fn(|cx| {
        let mut waits = false;
        for part in &mut parts {
            if let BatchPart::Running(running) = part {
                match running.as_mut().poll(cx) {
                    // A rate limit affects only the message's own response.
                    Poll::Ready(outcome) => *part = BatchPart::Done(outcome.text),
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
        if let BatchPart::Done(answer) = part {
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(&answer);
        }
    }
    out.push(b']');
    Bytes::from(out).into()
}
