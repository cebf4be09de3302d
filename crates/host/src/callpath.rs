//! The road every call takes, in order, on one page.

pub(crate) mod audited;
pub(crate) mod cached;
pub(crate) mod charge;
pub(crate) mod checked;
pub(crate) mod kept_results;
mod key_scope;
mod mirrored;
mod replay;
pub(crate) mod resolve;
pub(crate) mod seat;
mod telling;
mod verdict;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::call::{Call, CallDeadline, Origin, Principal, Reply, Route, Subject};
use bowline_core::error::{CallError, Execution};
use bowline_core::lane::KeyScope;
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::Now;
use bowline_link::{LinkError, OnBehalf, Rename, Request};
use foldhash::fast::RandomState;
use tracing::Instrument as _;

use crate::callpath::audited::{Auditor, Record};
use crate::callpath::cached::{Answers, Ask, Begun, Entered};
use crate::callpath::charge::Purse;
use crate::callpath::checked::Checker;
use crate::callpath::kept_results::KeptResults;
use crate::callpath::seat::SeatTable;
use crate::catalog::CatalogStore;
use crate::decide::Decider;
use crate::memory::Memory;
use crate::offload::Offload;
use crate::outbox::{self, Outbox};
use crate::ports::{Clock, Moment};
use crate::spec::{Reach, Side};
use crate::supervisor::{Passage, Ready, Supervisor, Tally};

pub(crate) use replay::SentKey;
pub(crate) use verdict::{ResponseWait, explain, health};

use verdict::{key_header, may_repeat};

/// How long a write that can be queued waits for a server that is being started.
const STORED_WAIT: Duration = Duration::from_secs(1);

/// The servers in care, by name; swapped whole when the configuration changes.
pub type Servers = HashMap<Arc<str>, Supervisor, RandomState>;

/// Everything a call meets on its way.
#[derive(Debug)]
pub struct CallPath {
    pub(crate) catalog: Arc<CatalogStore>,
    pub(crate) decider: Arc<Decider>,
    pub(crate) purse: Purse,
    pub(crate) seats: SeatTable,
    pub(crate) answers: Arc<Answers>,
    pub(crate) outbox: Outbox,
    pub(crate) checker: Checker,
    pub(crate) auditor: Auditor,
    pub(crate) servers: ArcSwap<Servers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) offload: Offload,
    /// Results that are read in parts.
    pub(crate) results: KeptResults,
    /// Binds idempotency keys to their principals.
    pub(crate) keys: KeyScope,
    /// Set once, when the host goes down: from then on a missing server is no news.
    pub(crate) closing: AtomicBool,
}

impl CallPath {
    /// Carries `call` to its server and brings the answer back, or says why there is none and
    /// whether the tool may have run.
    ///
    /// Dropping the future at any point is a cancellation: the seat is given back, the breaker is
    /// not told anything, and a server that has the request is told to stop.
    pub async fn call(&self, call: &Call) -> Result<Reply, CallError> {
        self.told(call, None).await
    }

    /// Carries `call` to this very server, and to no other that has its name by now.
    pub(crate) async fn call_at(
        &self,
        call: &Call,
        server: &Supervisor,
    ) -> Result<Reply, CallError> {
        self.told(call, Some(server)).await
    }

    /// Carries a call and writes down how it ended.
    async fn told(&self, call: &Call, only: Option<&Supervisor>) -> Result<Reply, CallError> {
        let mut record = self.auditor.open(call).await;
        let outcome = self.carry(call, Charge::Due, only, &mut record).await;
        record.close(&outcome);
        outcome
    }

    async fn carry(
        &self,
        call: &Call,
        charge: Charge,
        only: Option<&Supervisor>,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(CallError::ShuttingDown);
        }
        let started = self.clock.moment();
        let begun = self.answers.begin(started.now());

        // Catalog: which thing of which server. Waits for a server that is still starting.
        let (route, server) = self.resolve(call.into(), started.now()).await?;
        server.must_be(only)?;
        record.goes(&route);

        // Policy: the same decision as for listing.
        self.permit(call.into(), &route)
            .await
            .inspect_err(|_| record.refused())?;

        // Headers: what somebody on the way went by is what is called.
        mirrored::check(call, &route)?;

        // Budget: one unit for each call, whatever becomes of it; calls in flight of one
        // principal, given back on drop.
        if charge == Charge::Due {
            let ceiling = self.decider.ceiling(&call.principal);
            self.purse.open(&ceiling).await;
            self.purse.charge(call, &ceiling, started.now())?;
        }
        let seat = self.seats.take(&call.principal)?;

        // Cache and outbox stand here, outside the breaker: a fresh answer needs no server, and an
        // open breaker must queue the writes that the outbox exists for.
        let way = Way::new(call, &route, &server, started.now());
        let mut flight = match self
            .answers
            .enter(way.ask(call, begun), way.deadline)
            .await?
        {
            Entered::Hit(reply) => return self.given_again(call, &route, reply),
            Entered::Live(flight) => flight,
        };
        let intent = match self.outbox.enter(call, &route, way.deadline.at).await? {
            outbox::Entered::Answered { reply, key } => {
                record.keyed(key);
                return Ok(reply);
            }
            outbox::Entered::Live(intent) => intent,
        };

        // The server: with its key in place where the call was written down.
        let sent = intent.as_ref().map_or(call, |intent| {
            record.keyed(intent.key());
            intent.call()
        });
        let scoped = key_scope::scope_key(&self.keys, sent, &route);
        let sent = scoped.as_deref().unwrap_or(sent);
        let is_stored = intent.is_some();
        let (outcome, serves) = self.attempt(sent, way, (started, is_stored)).await;
        flight.back();

        // Configuration: what a server did not take before its entry changed is its successor's.
        if matches!(outcome, Err(CallError::Stopped { .. })) && self.is_replaced(&server) {
            drop((seat, flight));
            if let Some(intent) = intent {
                intent.withdraw().await;
            }
            return Box::pin(self.carry(call, Charge::Paid, only, record)).await;
        }

        // Memory: what the answer gave out that later requests will name, and the answer itself
        // where its server says that it stays good.
        if let Ok((reply, link)) = &outcome {
            let ended = self.clock.now();
            self.memory.learn(call, (&route, *link), reply, ended);
            flight.land(reply, ended);
        }
        let outcome = outcome.map(|(reply, _)| reply);
        match intent {
            None => outcome,
            Some(intent) => intent.settle(outcome, serves).await,
        }
    }

    /// Carries a call to its server; one that is stored is not kept waiting for a way that is known
    /// to be away. Says of such a one whether its server answered others meanwhile.
    async fn attempt(
        &self,
        call: &Call,
        way: Way<'_>,
        (started, is_stored): (Moment, bool),
    ) -> (Result<(Reply, LinkKey), CallError>, bool) {
        if !is_stored {
            return (self.run(call, way, started).await, false);
        }
        let reachable = self.outbox.check_reachable(way.route, way.server.spec());
        if let Err(error) = reachable {
            return (Err(error), false);
        }
        let before = way.server.answered_calls();
        let outcome = self.run(call, way, started).await;
        (outcome, way.server.answered_calls() > before)
    }

    /// Carries a call to its server, counts it there, and looks at what came back.
    async fn run(
        &self,
        call: &Call,
        way: Way<'_>,
        started: Moment,
    ) -> Result<(Reply, LinkKey), CallError> {
        // Load: from here on the call is counted at its server, also when its caller goes away.
        let Way { route, server, .. } = way;
        let span = telling::span(call, route);
        let mut tally = server.tally(started, span.clone());
        let outcome = self.admitted(call, way, &mut tally);
        let outcome = outcome.instrument(span.clone()).await;
        tally.end(&outcome, self.clock.moment());
        telling::failure(&span, way, outcome.as_ref().err());

        // Check: what came is what the tool promised.
        let (reply, link) = outcome.map_err(|error| error.cleaned(&server.spec().secrets))?;
        let promised = (route, server.spec());
        self.checker.check(&self.catalog, call, promised, &reply)?;
        self.decider.accept(route, &reply)?;

        // Length: what is too long to be passed on is kept, and read in parts.
        match server.spec().passes(reply.answer.len()) {
            true => Ok((reply, link)),
            false => {
                let reply = Box::pin(self.keep(call, promised, reply)).await?;
                Ok((reply, link))
            }
        }
    }

    /// Gives out an answer that was kept. The guard may have changed since it came, and this
    /// session may see for the first time what it links to.
    fn given_again(&self, call: &Call, route: &Route, reply: Reply) -> Result<Reply, CallError> {
        telling::given_again(call, route);
        self.decider.accept(route, &reply)?;
        let from = (route, LinkKey::SHARED);
        self.memory.learn(call, from, &reply, self.clock.now());
        Ok(reply)
    }

    /// Whether a server was retired and its name leads elsewhere now, or nowhere.
    fn is_replaced(&self, server: &Supervisor) -> bool {
        let servers = self.servers.load();
        let now = servers.get(&server.spec().name);
        server.has_successor() && !now.is_some_and(|now| now.is(server))
    }

    /// Carries a call through the gates of its server.
    async fn admitted(
        &self,
        call: &Call,
        way: Way<'_>,
        tally: &mut Tally<'_>,
    ) -> Result<(Reply, LinkKey), CallError> {
        // Breaker: a dropped ticket reports that nothing was learned.
        tally.admitted(way.server.admit()?);

        // Queue: calls in flight at one server. What is rare is boxed, so that a call carries no
        // room for it.
        let _turn = match way.server.free_turn(&call.principal) {
            Some(turn) => turn,
            None => Box::pin(way.server.turn(&call.principal, way.deadline.at)).await?,
        };

        // Supervisor: one start for all who wait.
        let ready = match way.server.ready_for(call) {
            Some(ready) => ready,
            None => Box::pin(self.link(call, way)).await?,
        };
        tally.carried(ready.generation);

        // Link, and one retry where it can do no harm.
        match self.send(call, way, &ready).await {
            Ok(reply) => Ok((reply, ready.key())),
            Err(error) if may_repeat(&error, call, way.route) => {
                Box::pin(self.again(call, way, tally, (&ready, error))).await
            }
            Err(error) => Err(way.explain(&error, &ready, self.clock.now())),
        }
    }

    /// Sends a call once more, on the link that took the place of the one that failed, or on the
    /// same where it outlived what failed: one over HTTP does. Where there is none in time, the
    /// first failure is what the caller is told.
    async fn again(
        &self,
        call: &Call,
        way: Way<'_>,
        tally: &mut Tally<'_>,
        (old, error): (&Ready, LinkError),
    ) -> Result<(Reply, LinkKey), CallError> {
        let first = way.explain(&error, old, self.clock.now());
        let next = match self.link(call, way).await {
            Ok(next) if next.generation != old.generation || next.link.is_open() => next,
            Ok(_) | Err(_) => return Err(first),
        };
        tally.repeated(next.generation);
        telling::retry(way, &first, next.generation);
        match self.send(call, way, &next).await {
            Ok(reply) => Ok((reply, next.key())),
            // What may have run may have run, whatever became of the second attempt.
            Err(error) if error.execution() == Execution::NotStarted => Err(first),
            Err(error) => Err(way.explain(&error, &next, self.clock.now())),
        }
    }

    /// Returns the link that carries a call; what is asked of a task goes where the task lives.
    async fn link(&self, call: &Call, way: Way<'_>) -> Result<Passage, CallError> {
        let server = way.server;
        // A write that can wait is stored already: its caller is told so, rather than kept.
        let deadline = match &way.route.queue {
            Some(_) if !server.is_idle() => way.deadline.at.min(self.clock.now().plus(STORED_WAIT)),
            Some(_) | None => way.deadline.at,
        };
        let Subject::Task { id, .. } = &call.subject else {
            return server.link_for(call, deadline).await;
        };
        if let Some(sealed) = call.sealed_task() {
            return server.link_of_task(call, sealed.link, deadline).await;
        }
        let session = call.caller.as_ref().map(|caller| caller.session());
        let (who, name) = (&call.principal.name, &server.spec().name);
        let link = lock(&self.memory.tasks)
            .find(who, session, name, id)
            .map_or(LinkKey::SHARED, |made| made.link);
        server.link_of_task(call, link, deadline).await
    }

    async fn send(&self, call: &Call, way: Way<'_>, ready: &Ready) -> Result<Reply, LinkError> {
        let answer = ready
            .link
            .request(Request {
                method: Cow::Borrowed(call.subject.method()),
                params: Some(call.params.clone()),
                rename: (**call.subject.name() != *way.route.name).then(|| Rename {
                    at: call.name_at.clone(),
                    to: Arc::clone(&way.route.name),
                }),
                progress_at: call.progress_at.clone(),
                reply_id: call.id.clone(),
                deadline: self.clock.instant(way.deadline.at),
                caller: call.caller.clone(),
                trace: call.trace.clone(),
                key: key_header(call, way.route),
                on_behalf: self.stamped_call(call, way.server).map(Box::new),
                era: call.era(),
                mirrors: way.route.mirrors.clone(),
            })
            .await?;
        Ok(Reply {
            answer: answer.bytes,
            body_at: answer.body_at,
            body: answer.body,
            origin: Origin::Live,
            era: answer.era,
            server: Some(Arc::clone(&way.route.server)),
        })
    }

    /// Says who makes a call, and in which run, to a peer.
    fn stamped_call(&self, call: &Call, server: &Supervisor) -> Option<OnBehalf> {
        let Reach::Peer(_) = &server.spec().reach else {
            return None;
        };
        Some(OnBehalf {
            run: call.run.as_ref().map(|run| Arc::clone(&run.id)),
            ..self.decider.stamp(&call.principal)
        })
    }

    /// Says who asks, to a worker: it decides for itself whether it serves them.
    pub(crate) fn stamped(&self, principal: &Principal, server: &Supervisor) -> Option<OnBehalf> {
        match &server.spec().reach {
            Reach::Peer(peer) if peer.side == Side::Worker => Some(self.decider.stamp(principal)),
            Reach::Child(_)
            | Reach::Placed(_)
            | Reach::Remote(_)
            | Reach::InProcess(_)
            | Reach::Peer(_) => None,
        }
    }
}

/// Whether a call was charged to its principal already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charge {
    Due,
    Paid,
}

/// Where a call goes, and until when it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way<'a> {
    route: &'a Route,
    server: &'a Supervisor,
    started: Now,
    deadline: CallDeadline,
}

impl<'a> Way<'a> {
    /// The deadline is the earlier of what the caller and the tool or its server allow; waiting
    /// for a place or a start counts.
    fn new(call: &Call, route: &'a Route, server: &'a Supervisor, started: Now) -> Self {
        let limit = route.timeout.unwrap_or_else(|| server.spec().call_timeout);
        let limit = started.plus(limit);
        Self {
            route,
            server,
            started,
            deadline: CallDeadline::earlier(limit, call.deadline),
        }
    }

    const fn ask(self, call: &'a Call, begun: Begun) -> Ask<'a> {
        let Self { route, server, .. } = self;
        Ask {
            call,
            route,
            server,
            begun,
        }
    }

    /// Puts a failure at `now` into the caller's terms.
    fn explain(self, error: &LinkError, ready: &Ready, now: Now) -> CallError {
        let wait = ResponseWait {
            ms: self.deadline.at.millis_since(self.started),
            limit: self.deadline.limit_at(now),
        };
        explain(error, &self.route.server, ready.ended(), wait)
    }
}
