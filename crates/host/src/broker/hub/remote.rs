//! A peer as the hub asks it: live over its connection, or by a message in its mailbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwap;
use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_core::sync::lock;
use bowline_core::time::millis;
use bowline_journal::{Known, MessageId, Published, Receipt};
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Draft, Frame, From, Letter, REQUEST, SessionEvent};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::live::{self, Asking};
use super::peers::{Ear, Peer};
use super::store::{StoreError, fresh_id, storage_full, unstored};
use super::{Shared, pump};
use crate::broker::{Errand, ErrandError, Hears, Manifest, Remote};

/// How the ids of the hub's own requests begin.
const OWN: &str = "hub-";

/// Stored errands whose replies are waited for at once.
const WAITING_MAX: usize = 65_536;

/// Stored errands of the hub whose replies are waited for, by the ids of the requests.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<Arc<str>, Waiter>);

#[derive(Debug)]
struct Waiter {
    /// Who was asked: nobody else can answer.
    of: Mailbox,
    answer: oneshot::Sender<Answer>,
    ear: Ear,
}

impl Waiting {
    /// Returns who waits for the reply to a request that this peer has.
    pub(super) fn ear(&self, of: &Mailbox, id: &str) -> Option<Ear> {
        let waiter = self.0.get(id)?;
        (waiter.of == *of).then(|| waiter.ear.clone())
    }
}

/// A peer of whom the hub may ask something.
#[derive(Debug)]
pub(super) struct PeerRemote {
    /// Weak, for whoever takes offers is held by the hub and holds this.
    shared: Weak<Shared>,
    mailbox: Mailbox,
    manifest: ArcSwap<Manifest>,
    changes: watch::Sender<u64>,
    /// Who hears what its servers say between requests; as many as it has servers.
    ears: Mutex<HashMap<Arc<str>, Weak<dyn Hears>>>,
}

/// Returns a peer as the hub asks it, the same for all who hold it.
pub(super) fn of(shared: &Arc<Shared>, mailbox: &Mailbox) -> Arc<PeerRemote> {
    let mut peers = lock(&shared.peers);
    if let Some(known) = peers.remotes.get(mailbox).and_then(Weak::upgrade) {
        return known;
    }
    let fresh = Arc::new(PeerRemote {
        shared: Arc::downgrade(shared),
        mailbox: mailbox.clone(),
        manifest: ArcSwap::default(),
        changes: watch::Sender::new(0),
        ears: Mutex::default(),
    });
    let kept = Arc::downgrade(&fresh);
    peers.remotes.insert(mailbox.clone(), kept);
    fresh
}

/// Tells those who ask a peer that it came or went.
pub(super) fn tell(shared: &Shared, mailbox: &Mailbox) {
    let known = lock(&shared.peers)
        .remotes
        .get(mailbox)
        .and_then(Weak::upgrade);
    if let Some(remote) = known {
        remote.changed();
    }
}

/// Passes on what a server of a peer says between requests.
pub(super) fn told(
    shared: &Shared,
    peer: &Peer,
    server: &str,
    session: Option<&Arc<str>>,
    notification: Bytes,
) {
    let is_offered = lock(&peer.books).offers.iter().any(|own| **own == *server);
    if !is_offered {
        return;
    }
    let remote = lock(&shared.peers)
        .remotes
        .get(peer.mailbox())
        .and_then(Weak::upgrade);
    let ear = remote.and_then(|remote| lock(&remote.ears).get(server)?.upgrade());
    if let Some(ear) = ear {
        ear.hear(session.map(AsRef::as_ref), notification);
    }
}

/// Takes a reply that came to the hub's mailbox.
pub(super) async fn replied(shared: &Shared, from: &From, letter: &Letter, receipt: Receipt) {
    let correlation = letter.correlation_id.as_deref().unwrap_or_default();
    let waiter = {
        let mut waiting = lock(&shared.waiting);
        let is_of = |waiter: &Waiter| *waiter.of.as_str() == from.session_id;
        match waiting.0.get(correlation) {
            Some(waiter) if is_of(waiter) => waiting.0.remove(correlation),
            Some(_) | None => None,
        }
    };
    // Read before it is acknowledged, so that one that cannot be read can still be looked at.
    let answer = Answer::read(&letter.body);
    match (waiter, answer) {
        (Some(waiter), Ok(answer)) => {
            // Whoever asked may have gone.
            let _ = waiter.answer.send(answer);
        }
        // One that comes after its time, or after a restart.
        (None, Ok(_)) if correlation.starts_with(OWN) => {
            tracing::debug!(from = %from.session_id, "a reply that nobody waits for");
        }
        (None, Ok(_)) => {
            let reason = "it answers nothing that was asked of its sender";
            return pump::bury(shared, receipt, reason.into()).await;
        }
        (_, Err(_)) => {
            let reason = "the reply cannot be read";
            return pump::bury(shared, receipt, reason.into()).await;
        }
    }
    if let Err(error) = shared.journal.ack(receipt, None, shared.at()).await {
        tracing::warn!(%error, "the end of a reply is not stored");
    }
}

impl PeerRemote {
    /// Puts another manifest in place of the one there is.
    pub(super) fn offers(&self, manifest: Manifest) {
        self.manifest.store(Arc::new(manifest));
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    async fn live(
        &self,
        shared: &Shared,
        body: Bytes,
        errand: Errand,
    ) -> Result<Answer, ErrandError> {
        let peer = lock(&shared.peers).subscriber(&self.mailbox);
        let peer = peer.ok_or_else(|| ErrandError::NotSent("the peer is not connected".into()))?;
        let asking = Asking {
            body,
            caller: stamp(errand.caller),
            deadline: errand.deadline,
            sink: errand.sink,
        };
        let body = live::ask(shared, &peer, asking).await?;
        Answer::read(&body).map_err(|error| {
            ErrandError::Refused(Failure {
                class: Class::ProtocolError,
                execution: Execution::Unknown,
                retry: Retry::Never,
                origin: Origin::Broker,
                code: "bad_answer".into(),
                reason: error.to_string().into(),
            })
        })
    }

    async fn stored(
        &self,
        shared: Arc<Shared>,
        body: Bytes,
        errand: Errand,
    ) -> Result<Answer, ErrandError> {
        let id = fresh_id(OWN).map_err(|error| ErrandError::NotSent(error.to_string().into()))?;
        let draft = Draft {
            id: &id,
            kind: REQUEST,
            body: &body,
            correlation_id: None,
            ttl_ms: Some(millis(shared.now().until(errand.deadline))),
            created_at_ms: shared.clock().unix_ms(),
        };
        let letter = Letter::new(&draft).stamped(&stamp(errand.caller));
        let (answer, heard) = oneshot::channel();
        let ear = Ear::of(errand.sink);
        let patience = Arc::clone(&ear.patience);
        let mut given_up = GivenUp::new(&shared, (&self.mailbox, &id), answer, ear)?;
        let work = async {
            let said = shared.say(&self.mailbox, &letter).await;
            given_up.message = match said {
                Ok(Published::Stored { id, .. } | Published::Known(Known::Waiting { id, .. })) => {
                    Some(id)
                }
                Ok(Published::Known(_)) => None,
                Err(error) => {
                    given_up.is_over = true;
                    return Err(ErrandError::Refused(refused(&error, &id)));
                }
            };
            let heard = heard.await;
            given_up.is_over = true;
            heard.map_err(|_| ErrandError::Lost("the hub goes down".into()))
        };
        let clock = shared.clock().as_ref();
        match patience.wait(clock, errand.deadline, work).await {
            Some(answer) => answer,
            None => Err(ErrandError::Timeout(given_up.withdraw().await)),
        }
    }
}

fn stamp(caller: Option<From>) -> From {
    From {
        session_id: HUB.into(),
        ..caller.unwrap_or_default()
    }
}

fn refused(error: &StoreError, id: &Arc<str>) -> Failure {
    let refusal = match error {
        StoreError::Journal(error) => unstored(error, id),
        StoreError::OverShare => storage_full(id),
    };
    Failure {
        class: Class::SendFailed,
        execution: Execution::NotStarted,
        retry: Retry::Never,
        origin: Origin::Broker,
        code: refusal.code.unwrap_or_default(),
        reason: refusal.reason,
    }
}

/// A stored errand that may be given up at any time.
#[derive(Debug)]
struct GivenUp {
    shared: Arc<Shared>,
    to: Mailbox,
    id: Arc<str>,
    message: Option<MessageId>,
    is_over: bool,
}

impl GivenUp {
    /// Begins to wait for the reply.
    fn new(
        shared: &Arc<Shared>,
        (to, id): (&Mailbox, &Arc<str>),
        answer: oneshot::Sender<Answer>,
        ear: Ear,
    ) -> Result<Self, ErrandError> {
        let mut waiting = lock(&shared.waiting);
        if waiting.0.len() >= WAITING_MAX || shared.is_closing() {
            return Err(ErrandError::NotSent("the hub asks too much already".into()));
        }
        let of = to.clone();
        waiting.0.insert(Arc::clone(id), Waiter { of, answer, ear });
        Ok(Self {
            shared: Arc::clone(shared),
            to: to.clone(),
            id: Arc::clone(id),
            message: None,
            is_over: false,
        })
    }

    /// Takes the request back, and returns what is known of whether it ran.
    async fn withdraw(&mut self) -> Execution {
        self.is_over = true;
        self.cancel();
        withdraw(&self.shared, self.message).await
    }

    fn cancel(&self) {
        let peer = lock(&self.shared.peers).subscriber(&self.to);
        if let Some(peer) = peer {
            peer.try_send(&Frame::Cancel {
                to: None,
                correlation_id: Arc::clone(&self.id),
            });
        }
    }
}

async fn withdraw(shared: &Shared, message: Option<MessageId>) -> Execution {
    let Some(id) = message else {
        return Execution::Unknown;
    };
    let entry = shared.journal.entry(id, shared.at()).await;
    let untouched = matches!(entry, Ok(Some(entry)) if entry.attempts == 0);
    // Nobody holds it, and nobody was ever given it: then it cannot have run.
    let removed = shared.journal.remove(id, shared.at()).await.is_ok();
    match untouched && removed {
        true => Execution::NotStarted,
        false => Execution::Unknown,
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        lock(&self.shared.waiting).0.remove(&self.id);
        let peer = lock(&self.shared.peers).subscriber(&self.to);
        if let Some(peer) = peer {
            peer.put.end_of(&self.id);
        }
        if self.is_over {
            return;
        }
        self.cancel();
        let (shared, message) = (Arc::clone(&self.shared), self.message);
        let tasks = shared.tasks().clone();
        tasks.spawn("errand return", async move {
            withdraw(&shared, message).await;
        });
    }
}

impl Remote for PeerRemote {
    fn ask(&self, errand: Errand) -> BoxFuture<'_, Result<Answer, ErrandError>> {
        Box::pin(async move {
            let Some(shared) = self.shared.upgrade() else {
                return Err(ErrandError::NotSent("the hub is gone".into()));
            };
            let mut body = Vec::new();
            errand.ask.write(&mut body);
            match errand.stored {
                true => self.stored(shared, body.into(), errand).await,
                false => self.live(&shared, body.into(), errand).await,
            }
        })
    }

    fn manifest(&self) -> Arc<Manifest> {
        self.manifest.load_full()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn is_connected(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| lock(&shared.peers).subscriber(&self.mailbox).is_some())
    }

    fn name(&self) -> Arc<str> {
        Arc::clone(self.mailbox.as_str())
    }

    fn hear(&self, server: &Arc<str>, ear: Weak<dyn Hears>) {
        let mut ears = lock(&self.ears);
        ears.retain(|_, ear| ear.strong_count() > 0);
        ears.insert(Arc::clone(server), ear);
    }

    fn session(&self, server: &Arc<str>, session: Arc<str>, event: SessionEvent) {
        let shared = self.shared.upgrade();
        let peer = shared.and_then(|shared| lock(&shared.peers).subscriber(&self.mailbox));
        if let Some(peer) = peer {
            // One that is not told forgets the session by itself when it is not used.
            peer.try_send(&Frame::Session {
                server: Arc::clone(server),
                session,
                event,
            });
        }
    }
}
