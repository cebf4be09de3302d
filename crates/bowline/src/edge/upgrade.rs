//! Connections that go on as something else than HTTP: peers of the broker, and executors.

use std::sync::Arc;

use bowline_link::websocket::{self, Agreed, Fault};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpStream;

use super::arrival::Arrival;
use super::body::{self, Answer};
use super::connection_pool::Place;
use super::door::{Proven, Refused};
use super::hold::Hold;
use super::route::Goes;
use super::{Edge, broker, executor};

/// Connections at once that have shaken hands and not yet said who they are; one more closes the
/// oldest of them.
pub(super) const LOBBY_MAX: usize = 256;

/// The same of one address that is not this machine's.
pub(super) const LOBBY_ADDRESS_MAX: usize = 32;

/// Bytes of a message before its sender has said who it is.
pub(super) const HELLO_BYTES_MAX: usize = 64 * 1024;

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
    /// Its place among those that have not yet said who they are, where it has not.
    pub(super) place: Option<Place>,
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
    // One that a header proved needs no place: nobody can hold it back.
    let place = match &proven {
        Some(proven) => match hold.seat(edge.host.accounts(), &proven.principal) {
            Ok(()) => None,
            Err(unseated) => return unseated.answer(),
        },
        None => {
            let place = edge.lobby.enter(hold.address());
            hold.leave_pool();
            Some(place)
        }
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
    let way = upgrade.place.as_ref().map(Place::signal);
    let arrival = Arrival::new(edge, hold, upgrade);
    let kept = async {
        match goes {
            Goes::Peer => broker::keep(arrival, io).await,
            Goes::Executor => executor::keep(arrival, io).await,
        }
    };
    match way {
        None => kept.await,
        Some(way) => tokio::select! {
            () = kept => {}
            () = way.asked() => {}
        },
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
