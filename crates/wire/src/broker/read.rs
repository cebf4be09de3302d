//! Reads frames.

use bytes::Bytes;

use super::{Frame, FrameError};

pub(super) fn frame(bytes: &Bytes) -> Result<Frame, FrameError> {
    let _ = bytes;
    Err(FrameError::NoObject)
}
