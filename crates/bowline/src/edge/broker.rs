//! `/broker`: where peers come in. Shakes hands for a WebSocket; then the connection is a peer's.

mod porter;

use std::sync::Arc;

use bowline_link::websocket::{self, Side, SocketLimits};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::body::{self, Answer};
use super::door::Proven;
use super::hold::Hold;
use super::{Edge, listen, upgrade};
use porter::Entrance;

/// Connections at once that have shaken hands and not yet said who they are.
pub(super) const LOBBY_MAX: usize = 256;

/// Where it is written what peers say.
const PAGE: &str = "docs/broker.md";

/// What a connection is once the answer to its handshake is written.
#[derive(Debug)]
pub(super) struct Upgrade {
    /// Who it is, where a header said so.
    proven: Option<Proven>,
    /// Its place among those that have not yet said who they are.
    place: OwnedSemaphorePermit,
}

/// Answers a request for `/broker`. Where it shakes hands, `hold` knows what comes after.
pub(super) fn answer(edge: &Edge, parts: &Parts, hold: &Hold) -> Answer {
    let proven = match edge.door.introduced(parts) {
        Ok(proven) => proven,
        Err(refused) => return listen::refusal(refused),
    };
    let agreed = match websocket::check(parts) {
        Ok(agreed) => agreed,
        Err(fault) => return upgrade::refuse(fault, PAGE),
    };
    let Ok(place) = Arc::clone(&edge.lobby).try_acquire_owned() else {
        let message = "too many connections have not said who they are; try again\n";
        return body::text(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    hold.becomes(Upgrade { proven, place });
    upgrade::agree(&agreed)
}

/// Keeps a connection whose handshake is done, to its end; `read` is what came early.
pub(super) async fn keep(
    edge: &Arc<Edge>,
    hold: &Arc<Hold>,
    (stream, read): (TcpStream, Bytes),
    upgrade: Upgrade,
) {
    let limits = SocketLimits::default();
    let io = websocket::join(stream, Side::Server, read, limits, edge.host.tasks());
    let entrance = Entrance::new(edge, hold, upgrade);
    edge.hub.attend(io, &entrance).await;
}
