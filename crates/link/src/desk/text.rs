//! Reads what a server wrote, message by message.

use std::sync::Arc;

use bowline_wire::{Fault, Message, Refusal, jsonrpc, object};
use bytes::Bytes;

use super::{Desk, Events, fail, own_id, receive};
use crate::link::LinkError;

/// Takes a text of the server: one message, or several in an array. Returns how many parts of it
/// are none.
pub(crate) fn take<D: Desk>(
    desk: &Arc<D>,
    events: &Events,
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
    match Message::parse_peer(text.clone()) {
        Ok(message) => {
            receive(desk, events, &message, via);
            0
        }
        Err(Refusal::Json(Fault::Utf8 { .. })) => {
            // Converted, it is valid text, so this happens once.
            let text = String::from_utf8_lossy(&text).into_owned();
            take(desk, events, Bytes::from(text), via)
        }
        Err(Refusal::Batch) => {
            let mut noise = 0;
            // A batch in a batch is none.
            for item in object::items(&text) {
                match Message::parse_peer(text.slice(item.start..item.end)) {
                    Ok(message) => receive(desk, events, &message, via),
                    Err(_) => noise += 1,
                }
            }
            noise
        }
        Err(refusal) => refused(desk.as_ref(), &text, refusal),
    }
}

/// A text that is no message. One that says it is an answer, and to what, ends that wait;
/// anything else that looks alike may be a log line of the server.
fn refused<D: Desk>(desk: &D, text: &[u8], refusal: Refusal) -> usize {
    let says = |key| object::field(text, key).is_some();
    let id = if says("jsonrpc") && !says("method") {
        jsonrpc::refused_id(text).and_then(own_id)
    } else {
        None
    };
    let Some(id) = id else {
        return 1;
    };
    let reason = match refusal {
        Refusal::Json(fault) => fault.to_string(),
        other => other.to_string(),
    };
    fail(desk, id, LinkError::BadAnswer(reason.into()));
    0
}
