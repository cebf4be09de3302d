//! Base64 bodies.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bowline_wire::FrameError;
use bytes::Bytes;

/// Returns the encoded length.
#[must_use]
pub(super) const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3).saturating_mul(4)
}

/// Returns the decoded length of a base64 text.
#[must_use]
pub(super) fn decoded_len(text: &[u8]) -> usize {
    let padding = text.iter().rev().take(2).filter(|byte| **byte == b'=');
    (text.len() / 4 * 3).saturating_sub(padding.count())
}

/// Writes bytes as a JSON string.
pub(super) fn write_encoded(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start.saturating_add(encoded_len(bytes.len())), b'=');
    if let Some(room) = out.get_mut(start..) {
        let written = STANDARD.encode_slice(bytes, room);
        debug_assert!(written.is_ok(), "the room is as long as the text");
    }
    out.push(b'"');
}

/// Decodes a text into a buffer of exact size.
pub(super) fn decode_text(text: &[u8], name: &'static str) -> Result<Bytes, FrameError> {
    let mut bytes = vec![0; decoded_len(text)];
    match STANDARD.decode_slice(text, &mut bytes) {
        Ok(count) if count == bytes.len() => Ok(bytes.into()),
        _ => Err(FrameError::Member(name)),
    }
}
