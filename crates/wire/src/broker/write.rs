//! Writes frames.

use super::Frame;

pub(super) fn frame(frame: &Frame, out: &mut Vec<u8>) {
    let _ = (frame, out);
}
