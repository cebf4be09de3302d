//! The answers to a handshake of a WebSocket.

use bowline_link::websocket::{Agreed, Fault};
use http::StatusCode;

use crate::edge::body::{self, Answer};

/// Refuses, and says where it is written what is spoken here.
pub(super) fn refuse(fault: Fault, page: &'static str) -> Answer {
    let line = match fault {
        Fault::Plain => format!("{fault}: {page}\n"),
        Fault::Method | Fault::Version | Fault::Malformed => format!("{fault}\n"),
    };
    let mut answer = body::text(fault.status(), line);
    fault.add_headers(answer.headers_mut());
    answer
}

/// Agrees.
pub(super) fn agree(agreed: &Agreed) -> Answer {
    let mut answer = body::empty(StatusCode::SWITCHING_PROTOCOLS);
    agreed.add_headers(answer.headers_mut());
    answer
}
