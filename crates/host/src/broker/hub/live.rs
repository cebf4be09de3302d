//! Live requests: never stored, answered over the connection on which they came.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::caller::{Ability, CallerEnd, SessionKey};
use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::mailbox::{Mailbox, check_id};
use bowline_core::sync::lock;
use bowline_core::time::{Now, millis};
use bowline_wire::broker::{Answer, Frame, From, Request};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::Shared;
use super::intake::Intake;
use super::peers::{Ear, Peer, Waiter};
use super::quota::InWork;
use super::rights::{not_allowed, refusal};
use crate::broker::{ErrandError, Incoming, REQUEST_TTL};

/// The longest that a live request may take.
const TTL_MAX: Duration = Duration::from_secs(60 * 60);

/// Takes a live request of a peer.
pub(super) async fn request(intake: &mut Intake<'_>, request: Request, in_work: Option<InWork>) {
    let (shared, peer) = (intake.shared, intake.peer);
    if check_id(&request.id).is_err() {
        let reason = "the name of the request is none";
        return intake.refuse(refusal("bad_name", reason, None)).await;
    }
    if intake.running.contains_key(&request.id) {
        let reason = "a request of this name is under way";
        let id = Some(&request.id);
        return intake.refuse(refusal("conflict", reason, id)).await;
    }
    if intake.running.len() >= shared.limits.requests_max || in_work.is_none() {
        let retry = Retry::After(Duration::from_millis(100));
        let failure = failure(
            (Class::Throttled, retry),
            "throttled",
            "too many requests at once",
        );
        respond(peer, request.id, &Answer::Failed(failure)).await;
        return;
    }
    let is_other = |to: &&str| !shared.aliases.is_own(to);
    let to = request.to.as_deref().filter(is_other);
    let to = to.map(Mailbox::parse).transpose();
    let allowed = match &to {
        Ok(to) => {
            let reaches = |to: &Mailbox| peer.admitted.reaches(to);
            peer.admitted.is(request.caller.as_ref()) && to.as_ref().is_none_or(reaches)
        }
        Err(_) => false,
    };
    let (Ok(to), true) = (to, allowed) else {
        let refused = not_allowed(Some(&request.id));
        intake.note(&refused);
        let denied = failure(
            (Class::Denied, Retry::Never),
            "not_allowed",
            &refused.reason,
        );
        respond(peer, request.id, &Answer::Failed(denied)).await;
        return;
    };
    let id = Arc::clone(&request.id);
    let (shared, peer) = (Arc::clone(shared), Arc::clone(peer));
    let run = intake.runs.spawn(async move {
        match to {
            None => answer(&shared, &peer, request).await,
            Some(to) => pass_on(&shared, &peer, &to, request).await,
        }
        drop(in_work);
    });
    intake.running.insert(id, run);
}

fn deadline(shared: &Shared, ttl_ms: Option<u64>) -> Now {
    let ttl = ttl_ms.map_or(REQUEST_TTL, Duration::from_millis);
    shared.now().plus(ttl.min(TTL_MAX))
}

/// Answers a request that goes to the hub.
async fn answer(shared: &Shared, peer: &Arc<Peer>, request: Request) {
    let incoming = Incoming {
        from: peer.stamp.clone(),
        principal: Some(Arc::clone(&peer.admitted.principal)),
        id: Arc::clone(&request.id),
        body: request.body,
        deadline: deadline(shared, request.ttl_ms),
        sink: Some(Words::to(peer, &request.id)),
    };
    let answer = shared.serving.live(incoming).await;
    respond(peer, request.id, &answer).await;
}

/// Puts a request to another peer, and brings back what it says.
async fn pass_on(shared: &Shared, peer: &Arc<Peer>, to: &Mailbox, request: Request) {
    let asking = Asking {
        body: request.body,
        caller: peer.stamp.clone(),
        deadline: deadline(shared, request.ttl_ms),
        sink: Some(Words::to(peer, &request.id)),
    };
    let other = lock(&shared.peers).subscriber(to);
    let body = match other {
        None => Err(ErrandError::NotSent("nobody is there".into())),
        Some(other) => ask(shared, &other, asking).await,
    };
    match body {
        Ok(body) => {
            let id = request.id;
            peer.send(&Frame::Response { id, body }).await;
        }
        Err(error) => respond(peer, request.id, &Answer::Failed(failed(&error))).await,
    }
}

async fn respond(peer: &Peer, id: Arc<str>, answer: &Answer) {
    // Where it is gone, it does not wait for this.
    let _ = peer.out.send(answer.response(&id)).await;
}

fn failure((class, retry): (Class, Retry), code: &str, reason: &str) -> Failure {
    Failure {
        class,
        execution: Execution::NotStarted,
        retry,
        origin: Origin::Broker,
        code: code.into(),
        reason: reason.into(),
    }
}

/// Says in words of a peer why an errand has no answer.
fn failed(error: &ErrandError) -> Failure {
    let (class, code, reason) = match error {
        ErrandError::NotSent(why) => (Class::ConnectFailed, "not_connected", Arc::clone(why)),
        ErrandError::Lost(why) => (Class::ConnectionLost, "connection_lost", Arc::clone(why)),
        ErrandError::Timeout(_) => (Class::Timeout, "timeout", "no answer in time".into()),
        ErrandError::Refused(failure) => return failure.clone(),
    };
    Failure {
        execution: error.execution(),
        ..failure((class, Retry::Never), code, &reason)
    }
}

/// What is asked of a peer.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) body: Bytes,
    pub(super) caller: From,
    pub(super) deadline: Now,
    pub(super) sink: Option<Arc<dyn CallerEnd>>,
}

/// Asks a peer, live. Dropping the future takes the request back, and tells the peer.
pub(super) async fn ask(
    shared: &Shared,
    peer: &Arc<Peer>,
    asking: Asking,
) -> Result<Bytes, ErrandError> {
    let ear = Ear::of(asking.sink);
    let patience = Arc::clone(&ear.patience);
    let mut waiting = Pending {
        peer: Arc::clone(peer),
        id: format!("q{}", shared.number()).into(),
        state: State::Unsent,
    };
    let work = async {
        // A peer is never asked for more at once than it is told it may ask itself.
        let Ok(_turn) = peer.turns.acquire().await else {
            return Err(ErrandError::NotSent("the peer is gone".into()));
        };
        let (answer, heard) = oneshot::channel();
        {
            let mut books = lock(&peer.books);
            if books.over {
                return Err(ErrandError::NotSent("the peer is gone".into()));
            }
            books
                .asked
                .insert(Arc::clone(&waiting.id), Waiter { answer, ear });
        }
        let request = Frame::Request(Request {
            id: Arc::clone(&waiting.id),
            to: None,
            body: asking.body,
            ttl_ms: Some(millis(shared.now().until(asking.deadline))),
            caller: Some(asking.caller),
        });
        if !peer.send(&request).await {
            return Err(ErrandError::NotSent("the connection is lost".into()));
        }
        waiting.state = State::Sent;
        let heard = heard.await;
        waiting.state = State::Over;
        heard.map_err(|_| ErrandError::Lost("the connection was lost".into()))
    };
    let clock = shared.clock().as_ref();
    let outcome = patience.wait(clock, asking.deadline, work).await;
    outcome.unwrap_or_else(|| {
        let execution = match waiting.state {
            State::Unsent => Execution::NotStarted,
            State::Sent | State::Over => Execution::Unknown,
        };
        Err(ErrandError::Timeout(execution))
    })
}

/// A question to a peer that may be given up at any time.
#[derive(Debug)]
struct Pending {
    peer: Arc<Peer>,
    id: Arc<str>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Unsent,
    Sent,
    Over,
}

impl Drop for Pending {
    fn drop(&mut self) {
        lock(&self.peer.books).asked.remove(&self.id);
        self.peer.put.end_of(&self.id);
        if matches!(self.state, State::Sent) {
            self.peer.try_send(&Frame::Cancel {
                to: None,
                correlation_id: Arc::clone(&self.id),
            });
        }
    }
}

/// Takes the answer of a peer. One to something that was not asked of it goes nowhere.
pub(super) fn answered(peer: &Peer, id: &str, body: Bytes) {
    let waiter = lock(&peer.books).asked.remove(id);
    match waiter {
        // Whoever asked may have gone.
        Some(waiter) => drop(waiter.answer.send(body)),
        None => tracing::debug!(mailbox = %peer.mailbox(), "an answer to nothing that was asked"),
    }
}

/// Returns who waits for the answer of a request that a peer has, live or stored.
fn ear(shared: &Shared, peer: &Peer, id: &str) -> Option<Ear> {
    let live = lock(&peer.books)
        .asked
        .get(id)
        .map(|waiter| waiter.ear.clone());
    live.or_else(|| lock(&shared.waiting).ear(peer.mailbox(), id))
}

/// Passes on what a tool of a peer says before it answers.
pub(super) fn heard(shared: &Shared, peer: &Peer, id: &str, notification: Bytes) {
    if let Some(sink) = ear(shared, peer, id).and_then(|ear| ear.sink) {
        sink.push(notification);
    }
}

/// Passes on that a server of a peer wanted to ask what its caller cannot be asked.
pub(super) fn lacks(shared: &Shared, peer: &Peer, id: &str, ability: Ability) {
    if let Some(sink) = ear(shared, peer, id).and_then(|ear| ear.sink) {
        sink.lacks(ability);
    }
}

/// Passes on what a server of a peer asks whoever waits for its answer.
pub(super) fn asked(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    (id, number): (Arc<str>, u64),
    request: Bytes,
) {
    let ear = ear(shared, peer, &id).unwrap_or_default();
    let patience = Arc::clone(&ear.patience);
    patience.begin(shared.now());
    let (from, hub) = (Arc::downgrade(peer), Arc::downgrade(shared));
    let of = Arc::clone(&id);
    let reply = move |answer| {
        let (Some(peer), Some(shared)) = (from.upgrade(), hub.upgrade()) else {
            return;
        };
        patience.end(shared.now());
        let id = of;
        let frame = Frame::Answer { id, number, answer };
        // A server that is not answered waits for as long as a person may take.
        if !peer.try_send(&frame) {
            shared.tasks().spawn("broker answer", async move {
                peer.send(&frame).await;
            });
        }
    };
    peer.put
        .put(ear.sink.as_ref(), &(id, number), request, reply);
}

/// Where the words of a tool go before it answers: to the connection of whoever asked.
#[derive(Debug)]
pub(super) struct Words {
    peer: Weak<Peer>,
    id: Arc<str>,
}

impl Words {
    pub(super) fn to(peer: &Arc<Peer>, id: &Arc<str>) -> Arc<dyn CallerEnd> {
        Arc::new(Self {
            peer: Arc::downgrade(peer),
            id: Arc::clone(id),
        })
    }
}

impl CallerEnd for Words {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn push(&self, notification: Bytes) {
        let Some(peer) = self.peer.upgrade() else {
            return;
        };
        let event = Frame::Event {
            id: Arc::clone(&self.id),
            notification,
        };
        if !peer.try_send(&event) {
            peer.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(bowline_core::caller::Deaf::new(SessionKey(0)))
    }
}
