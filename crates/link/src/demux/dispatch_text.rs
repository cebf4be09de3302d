//! Parses server text into messages, and dispatches each message.

use std::sync::Arc;

use bowline_wire::{JsonError, MessageError, RpcMessage, jsonrpc, object};
use bytes::Bytes;

use super::{Demux, LinkEventSender, dispatch, fail_request, parse_own_id};
use crate::link::LinkError;

/// Dispatches a server text: a message, or an array of messages. Returns the number of
/// parts besides messages.
pub(crate) fn dispatch_text<D: Demux>(
    demux: &Arc<D>,
    events: &LinkEventSender,
    text: Bytes,
    via: Option<u64>,
) -> usize {
    let trimmed = text.trim_ascii();
    let text = match trimmed.first() {
        None => return 0,
        Some(b'{' | b'[') if trimmed.len() == text.len() => text,
        Some(b'{' | b'[') => text.slice_ref(trimmed),
        Some(_) => return 1,
    };
    match RpcMessage::parse_from_server(text.clone()) {
        Ok(message) => {
            dispatch(demux, events, &message, via);
            0
        }
        Err(MessageError::Json(JsonError::Utf8 { .. })) => {
            // The lossy conversion is valid UTF-8, so this recurses once.
            let text = String::from_utf8_lossy(&text).into_owned();
            dispatch_text(demux, events, Bytes::from(text), via)
        }
        Err(MessageError::Batch) => {
            let mut noise = 0;
            // A nested batch is not a message.
            for item in object::items(&text) {
                match RpcMessage::parse_from_server(text.slice(item.start..item.end)) {
                    Ok(message) => dispatch(demux, events, &message, via),
                    Err(_) => noise += 1,
                }
            }
            noise
        }
        Err(refusal) => handle_malformed(demux.as_ref(), &text, refusal),
    }
}

/// Handles malformed text. If the text claims to be a response, the pending request
/// fails; further lines may be log output of the server.
fn handle_malformed<D: Demux>(demux: &D, text: &[u8], refusal: MessageError) -> usize {
    let has_member = |key| object::field(text, key).is_some();
    let id = if has_member("jsonrpc") && !has_member("method") {
        jsonrpc::find_refused_id(text).and_then(parse_own_id)
    } else {
        None
    };
    let Some(id) = id else {
        return 1;
    };
    let reason = match refusal {
        MessageError::Json(fault) => fault.to_string(),
        other => other.to_string(),
    };
    fail_request(demux, id, LinkError::BadResponse(reason.into()));
    0
}
