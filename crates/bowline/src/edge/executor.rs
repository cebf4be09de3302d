//! `/executor`: where executors come in.

use bowline_link::websocket::{self, Side, SocketLimits};
use bytes::Bytes;
use tokio::net::TcpStream;

use super::arrival::Arrival;

/// Keeps a connection of an executor, to its end; `read` is what came early.
pub(super) async fn keep(arrival: Arrival, (stream, read): (TcpStream, Bytes)) {
    let (limits, edge) = (SocketLimits::default(), &arrival.edge);
    let (outgoing, _incoming) =
        websocket::join(stream, Side::Server, read, limits, edge.host.tasks());
    outgoing.close(1011, "not yet");
}
