//! Which status of HTTP an error of the protocol is told with.

use bowline_wire::mcp::code;
use http::StatusCode;

/// Returns the status of an answer that is an error with this code.
pub(in crate::edge) const fn of(number: i64) -> StatusCode {
    match number {
        code::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION => {
            StatusCode::BAD_REQUEST
        }
        _ => StatusCode::OK,
    }
}
