//! Reads what a peer says, and sees to it; what takes long does not keep the next frame waiting.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::mailbox::{HUB, Mailbox, check_id};
use bowline_core::rates::RequestCost;
use bowline_core::sync::lock;
use bowline_journal::{Known, Published};
use bowline_link::BoxFuture;
use bowline_link::websocket::Incoming;
use bowline_wire::broker::{Frame, FrameError, Letter, REQUEST, Refusal};
use tokio::task::{AbortHandle, JoinSet};

use super::address::Address;
use super::counts::one;
use super::peers::Peer;
use super::pump::{self, Outcome, Return};
use super::quota::InWork;
use super::rights::{not_allowed, refusal};
use super::store::{storage_full, unstored};
use super::{Porter, Shared, live, offer, own, remote, views};

/// Frames of one peer that are being seen to at a time; the next ones wait.
const WORK_MAX: usize = 64;

/// A frame of more bytes counts in the rate of its principal, whatever it says.
const LARGE_FRAME_BYTES_MIN: usize = 64 * 1024;

/// Characters of a kind that is repeated to a peer that sent it.
const KIND_CHARS_MAX: usize = 64;

/// Dead letters that one frame lists.
const DEAD_MAX: usize = 100;

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The socket did.
    Gone,
    /// The peer broke the protocol.
    Broke(Refusal),
}

/// The reading side of one connection.
#[derive(Debug)]
pub(super) struct Intake<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) peer: &'a Arc<Peer>,
    porter: &'a dyn Porter,
    /// Frames that are being seen to.
    work: JoinSet<()>,
    /// Its live requests that run; they end with the connection.
    pub(super) runs: JoinSet<()>,
    /// The same by the names that it gave.
    pub(super) running: HashMap<Arc<str>, AbortHandle>,
}

impl<'a> Intake<'a> {
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        peer: &'a Arc<Peer>,
        porter: &'a dyn Porter,
    ) -> Self {
        Self {
            shared,
            peer,
            porter,
            work: JoinSet::new(),
            runs: JoinSet::new(),
            running: HashMap::new(),
        }
    }

    /// Reads until the connection ends.
    pub(super) async fn run(mut self, incoming: &mut Incoming) -> End {
        loop {
            let Ok(bytes) = incoming.next().await else {
                // What it said last counts: an acknowledgement above all.
                while self.work.join_next().await.is_some() {}
                return End::Gone;
            };
            self.reap().await;
            let frame = match Frame::read(&bytes) {
                Ok(frame) => frame,
                Err(error @ FrameError::Member(_)) => {
                    self.keep_rate(None, bytes.len()).await;
                    let reason = error.to_string();
                    self.refuse(refusal("bad_frame", &reason, None)).await;
                    continue;
                }
                Err(error) => return End::Broke(refusal("bad_frame", &error.to_string(), None)),
            };
            let size = bytes.len();
            drop(bytes);
            if let Frame::Other { kind, request_id } = frame {
                self.keep_rate(None, size).await;
                if let Some(end) = self.unknown(&kind, request_id).await {
                    return end;
                }
                continue;
            }
            // No more is read of a peer whose deliveries have their share of the memory.
            self.keep_rate(Some(&frame), size).await;
            let principal = &self.peer.admitted.principal;
            let in_work = match frame {
                Frame::Deliver { .. } => Some(self.shared.in_work(principal, size).await),
                // It may run for long, and what it waits for may come over this connection: it is
                // refused where there is no room, and the next frame is read.
                Frame::Request(_) => self.shared.try_in_work(principal, size),
                _ => None,
            };
            self.take(frame, (size, in_work)).await;
        }
    }

    /// Charges a frame to the rate of its principal: what asks the hub for work as a request, and
    /// any other large one by its bytes, since reading it takes long. A response that the hub
    /// waits for is not charged.
    async fn keep_rate(&self, frame: Option<&Frame>, size: usize) {
        let bytes = size as u64;
        let requests = match frame {
            Some(Frame::Deliver { .. } | Frame::Request(_)) => 1,
            Some(Frame::Response { id, .. })
                if lock(&self.peer.books).asked.contains_key(&**id) =>
            {
                return;
            }
            _ if size <= LARGE_FRAME_BYTES_MIN => return,
            _ => 0,
        };
        let cost = RequestCost { requests, bytes };
        let principal = &self.peer.admitted.principal;
        self.shared.keep_rate(principal, cost).await;
    }

    /// Forgets what has ended, and waits while too much is under way.
    async fn reap(&mut self) {
        while self.work.try_join_next().is_some() {}
        while self.work.len() >= WORK_MAX {
            self.work.join_next().await;
        }
        let mut ended = false;
        while self.runs.try_join_next().is_some() {
            ended = true;
        }
        if ended {
            self.running.retain(|_, run| !run.is_finished());
        }
    }

    async fn take(&mut self, frame: Frame, (size, in_work): (usize, Option<InWork>)) {
        match frame {
            Frame::Deliver { to, letter } => self.deliver(&to, letter, (size, in_work)).await,
            Frame::Subscribe => pump::subscribe(self.shared, self.peer),
            Frame::Ack { id } => self.ack(id, None),
            Frame::AckWithReceipt { id, request_id } => self.ack(id, Some(request_id)),
            Frame::Nak { id, delay_ms, dead } => {
                let how = match dead {
                    Some(reason) => Return::Dead(reason),
                    None => Return::Later(Duration::from_millis(delay_ms)),
                };
                let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
                self.work
                    .spawn(async move { pump::nak(&shared, &peer, &id, how).await });
            }
            Frame::Cancel { to, correlation_id } => self.cancel(to.as_ref(), &correlation_id).await,
            Frame::ListConnected { role } => {
                let ids = views::connected(self.shared, &self.peer.admitted, role.as_deref());
                self.peer.send(&Frame::Connected { ids }).await;
            }
            Frame::ListDead { limit } => {
                let limit = limit.min(DEAD_MAX);
                let letters = views::own_dead(self.shared, self.peer.mailbox(), limit).await;
                self.peer.send(&Frame::Dead { letters }).await;
            }
            Frame::Offer { revision, servers } => {
                for refused in offer::take(self.shared, self.peer, revision, &servers) {
                    self.refuse(refused).await;
                }
            }
            Frame::Request(request) => live::request(self, request, in_work).await,
            Frame::Response { id, body } => live::answered(self.peer, &id, body),
            Frame::Event { id, notification } => {
                live::heard(self.shared, self.peer, &id, notification);
            }
            Frame::Question {
                id,
                number,
                request,
            } => live::asked(self.shared, self.peer, (id, number), request),
            Frame::Lacks { id, ability } => live::lacks(self.shared, self.peer, &id, ability),
            Frame::Withdraw { id, number } => self.peer.put.withdraw(&(id, number)),
            Frame::Told {
                server,
                session,
                notification,
            } => remote::told(
                self.shared,
                self.peer,
                &server,
                session.as_ref(),
                notification,
            ),
            // What only a hub says, and a second hello; unknown kinds are refused before.
            Frame::Hello(_)
            | Frame::Welcome(_)
            | Frame::BrokerIdentity { .. }
            | Frame::Error(_)
            | Frame::Delivered { .. }
            | Frame::Message(_)
            | Frame::AckResult { .. }
            | Frame::Connected { .. }
            | Frame::Dead { .. }
            | Frame::Changed { .. }
            | Frame::Answer { .. }
            | Frame::Session { .. }
            | Frame::Other { .. } => {}
        }
    }

    /// Refuses a frame of a kind that is not known here. A peer that waits for the response of
    /// such a frame reads no error in its place, so its connection ends, and the wait with it.
    async fn unknown(&self, kind: &str, request_id: Option<Arc<str>>) -> Option<End> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let is_named = kind.len() <= KIND_CHARS_MAX && kind.chars().all(is_plain);
        let reason = match is_named {
            true => format!("frames of kind `{kind}` are not known here"),
            false => "a frame of a kind that is not known here".to_owned(),
        };
        // A name that is none is not repeated.
        let id = request_id.filter(|id| check_id(id).is_ok());
        let refused = refusal("unknown_frame", &reason, id.as_ref());
        if id.is_some() {
            one(&self.shared.counts.refused);
            return Some(End::Broke(refused));
        }
        self.refuse(refused).await;
        None
    }

    /// Tells the peer no, and the porter that it was told.
    pub(super) async fn refuse(&self, refusal: Refusal) {
        one(&self.shared.counts.refused);
        self.porter.refused(Some(&self.peer.admitted), &refusal);
        self.peer.send(&Frame::Error(refusal)).await;
    }

    /// Tells the porter of something that was refused.
    pub(super) fn note(&self, refusal: &Refusal) {
        self.porter.refused(Some(&self.peer.admitted), refusal);
    }

    async fn deliver(
        &mut self,
        to: &str,
        letter: Letter,
        (size, in_work): (usize, Option<InWork>),
    ) {
        // What is refused costs as much as what is stored.
        let principal = &self.peer.admitted.principal;
        self.shared.slow(principal, size).await;
        let (to, letter) = match self.vetted(to, &letter) {
            Ok(vetted) => vetted,
            Err(refusal) => return self.refuse(refusal).await,
        };
        if let Err(refusal) = self.check_room(&to.mailbox, &letter).await {
            return self.refuse(refusal).await;
        }
        let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
        let mut storing: BoxFuture<'static, ()> = Box::pin(async move {
            deliver(&shared, &peer, &to, letter).await;
            drop(in_work);
        });
        // Begun here, so that messages are stored in the order in which they came; what is left
        // of it is mostly waiting for the disk, together with others.
        let begun = poll_fn(|context| Poll::Ready(storing.as_mut().poll(context))).await;
        if begun.is_pending() {
            self.work.spawn(storing);
        }
    }

    /// Sees that there is room for a message in the journal: on the account of whose mailbox it
    /// goes to, or of the sender where that is the hub.
    async fn check_room(&self, to: &Mailbox, letter: &Letter) -> Result<(), Refusal> {
        let sender = &self.peer.admitted.principal.name;
        let whose = match to.principal() {
            HUB => Arc::clone(sender),
            other => other.into(),
        };
        match self.shared.make_room(&whose, letter.raw.len()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(storage_full(&letter.id)),
            Err(error) => Err(unstored(&error, &letter.id)),
        }
    }

    /// Checks all that a message says, and stamps it.
    fn vetted(&self, to: &str, letter: &Letter) -> Result<(Address, Letter), Refusal> {
        let bad =
            |name: bowline_core::mailbox::BadName, id| refusal("bad_name", &name.to_string(), id);
        // A name that is none is not repeated.
        check_id(&letter.id).map_err(|name| bad(name, None))?;
        let id = Some(&letter.id);
        if let Some(correlation) = &letter.correlation_id {
            check_id(correlation).map_err(|name| bad(name, id))?;
        }
        let to = self.shared.aliases.resolve(to);
        let to = to.map_err(|name| bad(name, id))?;
        let admitted = &self.peer.admitted;
        match admitted.is(letter.from.as_ref()) && admitted.sends(&to.mailbox, &letter.kind) {
            true => Ok((to, letter.stamped(&self.peer.stamp))),
            false => Err(not_allowed(id)),
        }
    }

    fn ack(&mut self, id: Arc<str>, request_id: Option<Arc<str>>) {
        let (shared, peer) = (Arc::clone(self.shared), Arc::clone(self.peer));
        self.work.spawn(async move {
            let outcome = pump::ack(&shared, &peer, &id).await;
            let Some(request_id) = request_id else {
                return;
            };
            let reason = match outcome {
                Outcome::Removed => None,
                Outcome::Unknown => Some("there is no such message to acknowledge"),
                Outcome::Failed => Some("the acknowledgement could not be stored"),
            };
            let result = Frame::AckResult {
                id,
                request_id,
                accepted: reason.is_none(),
                reason: reason.map(Into::into),
            };
            peer.send(&result).await;
        });
    }

    /// Takes a request back: one of its own that runs here, or one that another peer has.
    async fn cancel(&mut self, to: Option<&Arc<str>>, id: &Arc<str>) {
        if check_id(id).is_err() {
            let reason = "the name of the request is none";
            return self.refuse(refusal("bad_name", reason, None)).await;
        }
        let to = match to.filter(|to| !self.shared.aliases.is_own(to)) {
            None => {
                match self.running.remove(id) {
                    Some(run) => run.abort(),
                    None => own::cancel(self.shared, self.peer.mailbox(), id),
                }
                return;
            }
            Some(to) => Mailbox::parse(to),
        };
        match to {
            Ok(to) if self.peer.admitted.reaches(&to) => {
                let other = lock(&self.shared.peers).subscriber(&to);
                if let Some(other) = other {
                    let correlation_id = Arc::clone(id);
                    // Two peers may choose the same id: whose it is goes along.
                    let of = Arc::clone(self.peer.mailbox().as_str());
                    other.try_send(&Frame::Cancel {
                        to: Some(of),
                        correlation_id,
                    });
                }
            }
            Ok(_) | Err(_) => self.refuse(not_allowed(Some(id))).await,
        }
    }
}

/// Stores a message and says so.
async fn deliver(shared: &Arc<Shared>, peer: &Peer, to: &Address, letter: Letter) {
    let stored = shared.store(to, &peer.admitted.principal, &letter).await;
    let id = Arc::clone(&letter.id);
    let said = match &stored {
        Ok(_) => {
            one(&shared.counts.delivered);
            Frame::Delivered { id }
        }
        Err(error) => Frame::Error(unstored(error, &id)),
    };
    peer.send(&said).await;
    let was_done = matches!(stored, Ok(Published::Known(Known::Done(_))));
    if was_done && to.mailbox.principal() == HUB && &*letter.kind == REQUEST {
        let request = (&letter, to.alias.as_ref());
        own::answer_again(shared, peer.mailbox(), request).await;
    }
}
