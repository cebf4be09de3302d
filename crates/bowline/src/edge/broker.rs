//! `/broker`: where peers come in.

mod porter;

use bowline_link::websocket::SocketLimits;
use bytes::Bytes;
use tokio::net::TcpStream;

use super::arrival::Arrival;
use porter::Entrance;

/// Keeps a connection of a peer, to its end; `read` is what came early.
pub(super) async fn keep(arrival: Arrival, (stream, read): (TcpStream, Bytes)) {
    let (limits, edge) = (SocketLimits::default(), arrival.edge.clone());
    let io = arrival.join((stream, read), limits);
    let entrance = Entrance::new(arrival);
    edge.hub.attend(io, &entrance).await;
}
