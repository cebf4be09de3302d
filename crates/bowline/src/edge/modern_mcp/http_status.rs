//! HTTP status of JSON-RPC errors in the modern era.

use bowline_wire::mcp::code;
use http::StatusCode;

/// Returns the HTTP status for a JSON-RPC error code.
pub(in crate::edge) const fn status_for_code(number: i64) -> StatusCode {
    match number {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}
