//! Connections that go on as something else than HTTP: peers of the broker, and executors.

use std::sync::Arc;

use bowline_link::websocket::{self, Agreed, Fault};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::arrival::Arrival;
use super::body::{self, Answer};
use super::door::{Proven, Refused};
use super::hold::Hold;
use super::route::Goes;
use super::{Edge, broker, executor};

/// Connections at once that have shaken hands and not yet said who they are.
pub(super) const LOBBY_MAX: usize = 256;

/// Where it is written what is said there.
const fn page(goes: Goes) -> &'static str {
    match goes {
        Goes::Peer => "docs/broker.md",
        Goes::Executor => "docs/executor.md",
    }
}

/// What a connection is once the answer to its handshake is written.
#[derive(Debug)]
pub(super) struct Upgrade {
    goes: Goes,
    /// Who it is, where a header said so.
    pub(super) proven: Option<Proven>,
    /// Its place among those that have not yet said who they are.
    pub(super) place: OwnedSemaphorePermit,
}

/// Answers a request for such a connection. Where it shakes hands, `hold` knows what comes after.
pub(super) fn answer(edge: &Edge, parts: &Parts, hold: &Hold, goes: Goes) -> Answer {
    let proven = match edge.door.introduced(parts) {
        Ok(None) if goes == Goes::Executor => {
            return edge.refuse(Refused::Unauthorized, (parts, goes.word()), hold);
        }
        Ok(proven) => proven,
        Err(refused) => return edge.refuse(refused, (parts, goes.word()), hold),
    };
    let agreed = match websocket::check(parts) {
        Ok(agreed) => agreed,
        Err(fault) => return refuse(fault, page(goes)),
    };
    let Ok(place) = Arc::clone(&edge.lobby).try_acquire_owned() else {
        let message = "too many connections have not said who they are; try again\n";
        return body::text(StatusCode::SERVICE_UNAVAILABLE, message);
    };
    hold.becomes(Upgrade {
        goes,
        proven,
        place,
    });
    agree(&agreed)
}

/// Keeps a connection whose handshake is done, to its end; the bytes are what came early.
pub(super) async fn keep(
    edge: &Arc<Edge>,
    hold: &Arc<Hold>,
    io: (TcpStream, Bytes),
    upgrade: Upgrade,
) {
    let goes = upgrade.goes;
    let arrival = Arrival::new(edge, hold, upgrade);
    match goes {
        Goes::Peer => broker::keep(arrival, io).await,
        Goes::Executor => executor::keep(arrival, io).await,
    }
}

/// Refuses, and says where it is written what is spoken here.
fn refuse(fault: Fault, page: &'static str) -> Answer {
    let line = match fault {
        Fault::Plain => format!("{fault}: {page}\n"),
        Fault::Method | Fault::Version | Fault::Malformed => format!("{fault}\n"),
    };
    let mut answer = body::text(fault.status(), line);
    fault.add_headers(answer.headers_mut());
    answer
}

/// Agrees.
fn agree(agreed: &Agreed) -> Answer {
    let mut answer = body::empty(StatusCode::SWITCHING_PROTOCOLS);
    agreed.add_headers(answer.headers_mut());
    answer
}
