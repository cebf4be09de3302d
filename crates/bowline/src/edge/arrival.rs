//! Somebody who came in by a WebSocket: proves who it is, and goes when its credential does.

use std::sync::{Arc, Mutex};

use bowline_core::call::Principal;
use bowline_core::sync::lock;
use bowline_host::audit::{Note, Target};
use bowline_journal::audit::Kind;
use bowline_link::websocket::{self, Incoming, MessageLimit, Outgoing, Side, SocketLimits};
use bytes::Bytes;
use tokio::net::TcpStream;

use super::Edge;
use super::connection_pool::Place;
use super::door::{Proven, Refused};
use super::hold::Hold;
use super::unproven::Unproven;
use super::upgrade::{HELLO_BYTES_MAX, Upgrade};

/// What is said to one whose token counts no more.
pub(super) const EXPIRED: &str = "the token has expired or was revoked";

/// Somebody who came in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) edge: Arc<Edge>,
    hold: Arc<Hold>,
    /// Who it is, where a header said so.
    pub(super) proven: Option<Proven>,
    /// Given back when it has said who it is.
    place: Mutex<Option<Place>>,
    /// Set until it has said who it is: what its messages may be then.
    limit: Mutex<Option<(MessageLimit, usize)>>,
}

impl Arrival {
    pub(super) fn new(edge: &Arc<Edge>, hold: &Arc<Hold>, upgrade: Upgrade) -> Self {
        Self {
            edge: Arc::clone(edge),
            hold: Arc::clone(hold),
            proven: upgrade.proven.map(|proven| Proven {
                principal: hold.principal(&proven.principal),
                ..proven
            }),
            place: Mutex::new(upgrade.place),
            limit: Mutex::default(),
        }
    }

    /// Takes over its connection, which carries small messages until it has said who it is.
    pub(super) fn join(
        &self,
        (stream, read): (TcpStream, Bytes),
        limits: SocketLimits,
    ) -> (Outgoing, Incoming) {
        let small = SocketLimits {
            message_bytes_max: HELLO_BYTES_MAX.min(limits.message_bytes_max),
            ..limits
        };
        let tasks = self.edge.host.tasks();
        let (outgoing, incoming) = websocket::join(stream, Side::Server, read, small, tasks);
        let then = (outgoing.message_limit(), limits.message_bytes_max);
        *lock(&self.limit) = Some(then);
        (outgoing, incoming)
    }

    /// Lets it in as whom it proved to be.
    ///
    /// # Errors
    /// The token was revoked in this very moment.
    pub(super) fn settle(&self, proven: &Proven) -> Result<(), Refused> {
        self.edge.holds.prove(&self.hold, proven.token.as_ref())?;
        let seated = self.hold.seat(self.edge.host.accounts(), &proven.principal);
        seated.map_err(|_no_room| Refused::Unauthorized)?;
        if let Some(mut place) = lock(&self.place).take()
            && !place.leave()
        {
            return Err(Refused::Unauthorized);
        }
        if let Some((limit, bytes)) = lock(&self.limit).take() {
            limit.allow(bytes);
        }
        Ok(())
    }

    /// Counts a connection that does not prove who it is.
    pub(super) fn unproven(&self, route: &'static str) {
        self.edge.count_unproven(Unproven::Wrong, route, &self.hold);
    }

    /// Returns a principal as one that asks from here.
    pub(super) fn principal(&self, proven: &Arc<Principal>) -> Arc<Principal> {
        self.hold.principal(proven)
    }

    /// Leaves a row of what somebody was denied.
    pub(super) fn note(
        &self,
        principal: &Arc<Principal>,
        what: &str,
        reason: &Arc<str>,
        id: Option<&Arc<str>>,
    ) {
        let host = &self.edge.host;
        let mut note = Note::new(Kind::Denied, host.clock().unix_ms(), "failed");
        note.principal = Some(Arc::clone(principal));
        note.target = Target::Named {
            server: None,
            name: what.into(),
        };
        note.peer = self.hold.peer();
        note.id = id.cloned();
        note.reason = Some(Arc::clone(reason));
        host.audit().note(note);
    }

    /// Ends when the credential does, or when what it proves is something else than `standing`;
    /// returns what is said then.
    pub(super) fn over<S, F>(
        &self,
        proven: Proven,
        standing: S,
        (of, changed): (F, &'static str),
    ) -> impl Future<Output = &'static str> + use<S, F>
    where
        S: PartialEq,
        F: Fn(&Edge, &Principal) -> S,
    {
        let (edge, hold) = (Arc::clone(&self.edge), Arc::clone(&self.hold));
        async move {
            let mut rules = edge.host.policy_changes();
            let other = async {
                // They may have changed before this was asked for.
                while standing == of(&edge, &proven.principal) {
                    if rules.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                () = hold.closed() => EXPIRED,
                () = other => changed,
            }
        }
    }
}
