//! Responses that a link writes itself, because no server wrote one.

use bowline_core::call::BodyKind;
use bowline_core::era::Era;
use bowline_wire::jsonrpc::{write_error, write_result};

use super::{LinkRequest, LinkResponse};

impl LinkResponse {
    /// Writes the response with a result, which is JSON.
    #[must_use]
    pub fn from_result(request: &LinkRequest, result: &[u8]) -> Self {
        let mut bytes = Vec::new();
        let body_at = write_result(&mut bytes, &request.reply_id, result);
        Self {
            body: BodyKind::Result,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }

    /// Writes the response with an error; `data` is JSON.
    #[must_use]
    pub fn from_error(
        request: &LinkRequest,
        code: i64,
        message: &str,
        data: Option<&[u8]>,
    ) -> Self {
        let mut bytes = Vec::new();
        let body_at = write_error(&mut bytes, Some(&request.reply_id), code, message, data);
        Self {
            body: BodyKind::Error,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }
}
