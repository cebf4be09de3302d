//! One conversation with a server over many HTTP requests: who waits, and whether it goes on.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bowline_core::era::Era;
use bowline_core::pending::Sent;
use bowline_core::sync::lock;
use bowline_wire::mcp::method;
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::client::{Body, HttpClient};
use super::endpoint::Endpoint;
use super::road::{Road, Verb};
use super::session::Held;
use super::waiting::Waiting;
use super::{HttpSpec, changes, labels};
use crate::desk::{self, Counts, Desk, Events, Receiver, Waiter, Waiters};
use crate::link::{Answer, Exit, LinkError, LinkEvent, NotSent, Request};
use crate::peer::frame;
use crate::stdio::{ClientInfo, abilities};

/// Which of the two HTTP transports a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Answers come with the request that they answer.
    Streamable,
    /// Answers come on the one stream that was opened first.
    Sse,
    /// Answers come with the request that they answer, and every request stands alone: there is
    /// no session, and its end is that of its stream.
    Stateless,
}

impl Form {
    /// Returns how the server speaks.
    pub(super) const fn era(self) -> Era {
        match self {
            Self::Streamable | Self::Sse => Era::Legacy,
            Self::Stateless => Era::Modern,
        }
    }
}

/// How far the life of a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requests are taken.
    Open,
    /// No more requests are taken; the session is being ended.
    Ending,
    /// All is over.
    Ended(Exit),
}

/// What all requests of a link share.
#[derive(Debug)]
pub(super) struct Talk {
    pub(super) spec: HttpSpec,
    pub(super) client: ClientInfo,
    pub(super) form: Form,
    /// Where messages are posted.
    pub(super) endpoint: Endpoint,
    pub(super) road: Road,
    pub(super) events: Events,
    pub(super) session: watch::Sender<Arc<Held>>,
    /// One permit: who holds it makes the next session, for all.
    pub(super) renewing: Semaphore,
    /// One permit: the response whose reader holds it may be longer than usual.
    pub(super) large_reads: Arc<Semaphore>,
    /// Wakes who delivers changes that found no room.
    pub(super) due: Notify,
    state: Mutex<State>,
    /// Follows `State::phase`, for those who wait.
    phase: watch::Sender<Phase>,
    /// Messages that want no answer.
    outbox: mpsc::Sender<Bytes>,
    /// Streams whose answer has come, to be read to their end.
    rests: mpsc::Sender<Body>,
    /// The next id of a request that stays open.
    listen_id: AtomicU64,
    counts: Counts,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    waiters: Waiters,
}

/// The receiving ends of a conversation, each for one task.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) outbox: mpsc::Receiver<Bytes>,
    pub(super) rests: mpsc::Receiver<Body>,
}

/// Streams that may wait to be read to their end.
const RESTS_MAX: usize = 64;

impl Talk {
    pub(super) fn new(
        spec: &HttpSpec,
        http: Arc<dyn HttpClient>,
        client: ClientInfo,
        (form, endpoint): (Form, Endpoint),
        events: mpsc::Sender<LinkEvent>,
    ) -> (Arc<Self>, Ends) {
        let (outbox, outbox_end) = mpsc::channel(spec.limits.outbox_max.max(1));
        let (rests, rests_end) = mpsc::channel(RESTS_MAX);
        // One more than callers may use, so that a new session can always be made.
        let held = match form {
            Form::Streamable | Form::Sse => Held::none(),
            Form::Stateless => Held::stateless(),
        };
        let waiters_max = spec.limits.in_flight_max.saturating_add(1);
        let talk = Self {
            session: watch::Sender::new(Arc::new(held)),
            client,
            form,
            endpoint,
            road: Road::new(http, Arc::clone(&spec.credentials)),
            events: Events::new(events),
            renewing: Semaphore::new(1),
            large_reads: Arc::new(Semaphore::new(1)),
            due: Notify::new(),
            state: Mutex::new(State {
                phase: Phase::Open,
                waiters: Waiters::new(waiters_max, spec.owner.clone()),
            }),
            phase: watch::Sender::new(Phase::Open),
            outbox,
            rests,
            listen_id: AtomicU64::new(changes::IDS_FROM),
            counts: Counts::default(),
            spec: spec.clone(),
        };
        let ends = Ends {
            outbox: outbox_end,
            rests: rests_end,
        };
        (Arc::new(talk), ends)
    }

    /// Sends a request and waits for its answer.
    pub(super) fn request(
        self: &Arc<Self>,
        request: Request,
    ) -> impl Future<Output = Result<Answer, LinkError>> + Send {
        // All that needs the request is done here: what is moved into a future is held there for
        // as long as it waits.
        let (again, deadline) = (Again::of(&request.method), request.deadline);
        let entered = self.enter(request);
        async move {
            let (mut waiting, mut answer, verb) = entered?;
            let id = waiting.id();
            let carrying = pin!(self.carry(id, verb, again, deadline));
            let outcome = self.exchange(id, &mut answer, deadline, carrying).await;
            waiting.settle(outcome, &mut answer)
        }
    }

    fn enter(&self, request: Request) -> Result<(Waiting<'_>, Receiver, Verb), LinkError> {
        let (id, answer) = self.register(&request, self.spec.limits.in_flight_max)?;
        let waiting = Waiting::new(self, id);
        Ok((waiting, answer, self.verb(id, request)?))
    }

    /// Returns what goes out for a request. The parameters can be large and the wait long, so that
    /// nothing else is kept of it.
    pub(super) fn verb(&self, id: u64, request: Request) -> Result<Verb, LinkError> {
        let body = message(frame::request(id, &request, frame::Place::Header));
        let bytes_max = self.spec.limits.body_bytes_max;
        if body.len() > bytes_max {
            return Err(LinkError::NotSent(NotSent::TooLarge { bytes_max }));
        }
        match self.form {
            Form::Streamable | Form::Sse => Ok(Verb::call(body, request.trace, request.key)),
            Form::Stateless => labels::labelled(&self.session.borrow(), body, request),
        }
    }

    /// Returns how long the response to a request may be.
    pub(super) fn response_bytes_max(&self, id: u64) -> usize {
        let limits = &self.spec.limits;
        let kind = self.with(|waiters| waiters.pending.get(id).map(|waiter| waiter.kind));
        kind.map_or(limits.body_bytes_max, |kind| {
            limits.large.bytes_max(kind, limits.body_bytes_max)
        })
    }

    /// Waits for an answer while `carrying` brings the request there; `None` when the deadline
    /// came first. It is borrowed, since what is moved into a future is held there twice.
    pub(super) async fn exchange(
        &self,
        id: u64,
        answer: &mut Receiver,
        deadline: Instant,
        carrying: Pin<&mut impl Future<Output = Result<(), LinkError>>>,
    ) -> Option<Result<Answer, LinkError>> {
        let mut waiting = pin!(desk::wait(self, id, answer, deadline));
        tokio::select! {
            biased;
            carried = carrying => match carried {
                Ok(()) => waiting.await,
                Err(error) => Some(Err(error)),
            },
            // It may come another way, or the wait may be over.
            waited = &mut waiting => waited,
        }
    }

    /// Hands over a message that wants no answer, without waiting.
    pub(super) fn post_later(&self, message: Bytes) -> Result<(), LinkError> {
        if let Some(exit) = self.exit() {
            return Err(LinkError::Closed(exit));
        }
        if self.form == Form::Stateless {
            // Such a server takes requests only.
            Counts::add(&self.counts.dropped);
            return Ok(());
        }
        let queued = self.outbox.try_send(message);
        queued.map_err(|_| LinkError::NotSent(NotSent::QueueFull))
    }

    /// Enters one who waits, unless `in_flight_max` do.
    pub(super) fn register(
        &self,
        request: &Request,
        in_flight_max: usize,
    ) -> Result<(u64, Receiver), LinkError> {
        let (waiter, receiver) = Waiter::new(request);
        let mut state = lock(&self.state);
        if let Some(exit) = state.phase.exit() {
            return Err(LinkError::Closed(exit));
        }
        let busy = LinkError::Busy { in_flight_max };
        if state.waiters.pending.len() >= in_flight_max {
            return Err(busy);
        }
        let id = state.waiters.pending.register(waiter).map_err(|_| busy)?;
        Ok((id, receiver))
    }

    /// Takes a text of the server and returns whether `via` waits no more.
    pub(super) fn take(self: &Arc<Self>, text: Bytes, via: Option<u64>) -> bool {
        for _ in 0..desk::take(self, &self.events, text, via) {
            Counts::add(&self.counts.noise);
        }
        if self.events.is_due() {
            self.due.notify_one();
        }
        via.is_some_and(|id| !self.is_waited_for(id))
    }

    /// Returns an id for a request that stays open.
    pub(super) fn listen_id(&self) -> u64 {
        self.listen_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a message that has no place where it came.
    pub(super) fn stray(&self) {
        Counts::add(&self.counts.dropped);
    }

    pub(super) fn is_waited_for(&self, id: u64) -> bool {
        self.with(|waiters| waiters.pending.get(id).is_some())
    }

    /// Whether there is somebody whom the server can ask during a request.
    pub(super) fn has_caller(&self, id: u64) -> bool {
        let has = |waiter: &Waiter| waiter.caller.is_some();
        self.with(|waiters| waiters.pending.get(id).is_some_and(has))
    }

    /// Reads a stream on whose answer has come, so that its connection can be used again.
    pub(super) fn read_on(&self, rest: Body) {
        if !rest.is_here() {
            // Without room it is dropped, which closes the connection.
            let _ = self.rests.try_send(rest);
        }
    }

    pub(super) fn abilities(&self) -> bowline_core::caller::Abilities {
        abilities(self.spec.owner.as_ref())
    }

    /// Returns how the link ended, or is about to; nothing while it is open.
    pub(super) fn exit(&self) -> Option<Exit> {
        lock(&self.state).phase.exit()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.with(|waiters| waiters.pending.len())
    }

    /// Takes no more requests and ends the session.
    pub(super) fn end(&self) {
        self.reach(Phase::Ending);
    }

    /// The server is gone: no more requests are taken. What is in flight has connections of its
    /// own, and ends as they do.
    pub(super) fn lose(&self) {
        self.reach(Phase::Ended(Exit::Gone));
    }

    /// All is over, for everyone who waits too.
    pub(super) fn finish(&self, exit: Exit) {
        self.reach(Phase::Ended(exit));
        let waiters = self.with(|waiters| waiters.pending.drain().collect::<Vec<_>>());
        for (waiter, sent) in waiters {
            let _ = waiter.answer.send(Err(match sent {
                Sent::No => LinkError::Closed(exit),
                Sent::Perhaps => LinkError::Lost(exit),
            }));
        }
    }

    fn reach(&self, phase: Phase) {
        let mut state = lock(&self.state);
        let goes_on = match (state.phase, phase) {
            (Phase::Open, _) => true,
            (Phase::Ending, Phase::Ended(_)) => true,
            (Phase::Ending | Phase::Ended(_), _) => false,
        };
        if goes_on {
            state.phase = phase;
            // Told under the lock, so that those who wait see the phases in their order.
            self.phase.send_replace(phase);
        }
    }

    /// Waits until no more requests are taken.
    pub(super) async fn over(&self) -> Phase {
        self.reached(|phase| *phase != Phase::Open).await
    }

    /// Waits until all is over.
    pub(super) async fn ended(&self) -> Exit {
        let ended = self.reached(|phase| matches!(phase, Phase::Ended(_)));
        ended.await.exit().unwrap_or(Exit::Gone)
    }

    async fn reached(&self, wanted: impl FnMut(&Phase) -> bool + Send) -> Phase {
        let mut phase = self.phase.subscribe();
        let reached = phase.wait_for(wanted).await;
        reached.map_or(Phase::Ended(Exit::Gone), |phase| *phase)
    }
}

impl Phase {
    const fn exit(self) -> Option<Exit> {
        match self {
            Self::Open => None,
            Self::Ending => Some(Exit::Stopping),
            Self::Ended(exit) => Some(exit),
        }
    }
}

impl Desk for Talk {
    fn with<R>(&self, look: impl FnOnce(&mut Waiters) -> R) -> R {
        look(&mut lock(&self.state).waiters)
    }

    fn reply(self: &Arc<Self>, answer: Vec<u8>) {
        if self.post_later(answer.into()).is_err() {
            Counts::add(&self.counts.dropped);
        }
    }

    fn counts(&self) -> &Counts {
        &self.counts
    }

    fn server(&self) -> &str {
        &self.spec.server
    }

    fn takes_requests(&self) -> bool {
        self.form != Form::Stateless
    }
}

/// Whether a request may be sent again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// When what failed may go well a moment later.
    Transient,
    /// It might be carried out twice.
    Never,
}

impl Again {
    fn of(method: &str) -> Self {
        if matches!(method, method::TOOLS_LIST | method::DISCOVER) {
            Self::Transient
        } else {
            Self::Never
        }
    }
}

/// A line without its end.
pub(super) fn message(mut line: Vec<u8>) -> Bytes {
    line.pop_if(|byte| *byte == b'\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use std::mem::size_of_val;

    use bowline_core::era::Speaks;

    use super::super::credentials::Anonymous;
    use super::super::hyper_client::{ClientLimits, HyperClient};
    use super::super::{HttpLimits, Transport};
    use super::*;

    /// Many calls wait at once, and each has one of these; 48 bytes of it are for the permit of a
    /// response that is longer than usual.
    const CALL_FUTURE_BYTES_MAX: usize = 1280;

    #[test]
    fn a_call_that_waits_is_small() {
        let endpoint = Endpoint::parse("http://127.0.0.1:1/mcp").unwrap();
        let spec = HttpSpec {
            server: "tracker".into(),
            url: endpoint.clone(),
            transport: Transport::Auto,
            credentials: Arc::new(Anonymous),
            owner: None,
            speaks: Speaks::Auto,
            limits: HttpLimits::default(),
        };
        let http = Arc::new(HyperClient::new(ClientLimits::default()).unwrap());
        let info = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        let (events, _heard) = mpsc::channel(1);
        let (talk, _ends) = Talk::new(&spec, http, info, (Form::Streamable, endpoint), events);
        let request = Request {
            method: "tools/call".into(),
            params: None,
            rename: None,
            progress_at: None,
            reply_id: Bytes::from_static(b"1"),
            deadline: super::super::clock::now(),
            caller: None,
            trace: None,
            key: None,
            on_behalf: None,
            era: Era::Legacy,
            mirrors: None,
        };
        let bytes = size_of_val(&talk.request(request));
        assert!(bytes <= CALL_FUTURE_BYTES_MAX, "{bytes}");
    }
}
