//! Why the connection of an executor to a gateway ended.

use bowline_link::websocket::close_codes;
use bowline_link::websocket::{DisconnectReason, WebSocketSender};
use bowline_wire::FrameError;
use thiserror::Error;

/// Why a connection ended.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ServiceError {
    /// The connection ended.
    #[error("the connection ended")]
    Ended(#[from] DisconnectReason),
    /// The gateway sent an invalid frame.
    #[error("what the gateway says is not valid")]
    Frame(#[from] FrameError),
    /// The gateway sent an unexpected frame.
    #[error("the gateway did not keep to the protocol: {0}")]
    Unexpected(&'static str),
    /// The gateway speaks another protocol version.
    #[error("the gateway speaks revision {0}")]
    Version(u64),
    /// The handshake timed out.
    #[error("no handshake in time")]
    Timeout,
    /// A newer connection took over the session.
    #[error("another connection took its place")]
    Fenced,
}

impl ServiceError {
    /// Closes the connection after a protocol error.
    pub(super) fn close_connection(&self, outgoing: &WebSocketSender) {
        match self {
            Self::Ended(_) | Self::Fenced => {}
            Self::Frame(_) | Self::Unexpected(_) | Self::Version(_) | Self::Timeout => {
                outgoing.close(close_codes::PROTOCOL_ERROR, &self.to_string());
            }
        }
    }
}
