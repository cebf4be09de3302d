//! Bodies as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use crate::frame::FrameError;

/// Returns how long bytes are as text.
#[must_use]
pub(super) const fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(3).saturating_mul(4)
}

/// Returns how many bytes a text is, if it is one of bytes.
#[must_use]
pub(super) fn decoded_len(text: &[u8]) -> usize {
    let padding = text.iter().rev().take(2).filter(|byte| **byte == b'=');
    (text.len() / 4 * 3).saturating_sub(padding.count())
}

/// Writes bytes as a string of JSON.
pub(super) fn write(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start.saturating_add(encoded_len(bytes.len())), b'=');
    if let Some(room) = out.get_mut(start..) {
        let written = STANDARD.encode_slice(bytes, room);
        debug_assert!(written.is_ok(), "the room is as long as the text");
    }
    out.push(b'"');
}

/// Returns the bytes of a text, in memory of exactly their size.
pub(super) fn read(text: &[u8], name: &'static str) -> Result<Bytes, FrameError> {
    let mut bytes = vec![0; decoded_len(text)];
    match STANDARD.decode_slice(text, &mut bytes) {
        Ok(count) if count == bytes.len() => Ok(bytes.into()),
        _ => Err(FrameError::Member(name)),
    }
}
