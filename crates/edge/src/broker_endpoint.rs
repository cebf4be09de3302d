//! `/broker`: WebSocket endpoint for broker peers.

mod peer_auth;

use bowline_link::websocket::WebSocketLimits;

use super::upgrade::UpgradedStream;
use super::upgraded_connection::UpgradedConnection;
use peer_auth::EdgePeerAuth;

/// Serves a peer's connection until closed.
pub(super) async fn serve_peer(connection: UpgradedConnection, stream: UpgradedStream) {
    let (limits, edge) = (WebSocketLimits::default(), connection.edge.clone());
    let socket = connection.open_socket(stream, limits);
    let authenticator = EdgePeerAuth::new(connection);
    edge.hub.serve_peer(socket, &authenticator).await;
}
