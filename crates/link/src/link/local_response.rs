//! Responses that a link writes itself, because no server wrote one.

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::era::Era;
use bowline_wire::jsonrpc::{write_error, write_result};

use super::LinkRequest;

impl LinkRequest {
    /// Writes the response with a result, which is JSON.
    #[must_use]
    pub fn result_response(&self, result: &[u8]) -> ServerResponse {
        let mut bytes = Vec::new();
        let body_at = write_result(&mut bytes, &self.reply_id, result);
        ServerResponse {
            body: BodyKind::Result,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }

    /// Writes the response with an error; `data` is JSON.
    #[must_use]
    pub fn error_response(&self, code: i64, message: &str, data: Option<&[u8]>) -> ServerResponse {
        let mut bytes = Vec::new();
        let body_at = write_error(&mut bytes, Some(&self.reply_id), code, message, data);
        ServerResponse {
            body: BodyKind::Error,
            body_at,
            bytes: bytes.into(),
            era: Era::Legacy,
        }
    }
}
