//! Replies written by the host itself, in the format of server responses.

use bowline_core::call::{BodyKind, CallReply, ReplyOrigin, ServerResponse};
use bowline_core::era::Era;
use bowline_wire::jsonrpc::Envelope;
use bowline_wire::splice::write_string;
use bytes::Bytes;

/// Writes a result with equal text and structured content.
pub(crate) fn structured_reply(json: &str, id: &Bytes, origin: ReplyOrigin) -> CallReply {
    let mut result = text_content(json);
    result.extend_from_slice(b",\"structuredContent\":");
    result.extend_from_slice(json.as_bytes());
    result.push(b'}');
    result_reply(&result, id, origin)
}

/// Writes an error result about the arguments.
pub(crate) fn error_reply(message: &str, id: &Bytes) -> CallReply {
    let mut result = text_content(message);
    result.extend_from_slice(b",\"isError\":true}");
    result_reply(&result, id, ReplyOrigin::Live)
}

/// Writes a result as the response to `id`.
pub(crate) fn result_reply(result: &[u8], id: &Bytes, origin: ReplyOrigin) -> CallReply {
    let envelope = Envelope::Result { id };
    let mut bytes = Vec::with_capacity(envelope.capacity(result.len()));
    let body_at = envelope.write(&mut bytes, |out| out.extend_from_slice(result));
    CallReply {
        response: ServerResponse {
            bytes: bytes.into(),
            body: BodyKind::Result,
            body_at,
            era: Era::Legacy,
        },
        origin,
        server: None,
    }
}

/// Begins a result with a text block.
fn text_content(text: &str) -> Vec<u8> {
    let mut result = b"{\"content\":[{\"type\":\"text\",\"text\":".to_vec();
    write_string(&mut result, text);
    result.extend_from_slice(b"}]");
    result
}
