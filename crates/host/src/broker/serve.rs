//! Answers requests, side by side and under limits, each once.

mod courier;
mod desk;
mod seats;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::caller::CallerEnd;
use bowline_core::error::{Execution, Failure};
use bowline_core::time::Now;
use bowline_journal::{At, JournalError};
use bowline_link::ASKED_MAX;
use bowline_wire::broker::{Answer, Ask, From, Said};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use self::desk::{Desk, Ended, Entered, Key, Turn};
use self::seats::Seats;
use super::failures;
use super::ledger::{Begun, Entry};
use crate::broker::{Backend, Job, Ledger, Manifest};
use crate::ports::Clock;

pub use courier::{Courier, ReplyError, reply_id};

/// How long a request waits before it comes again that came when there was no room.
const PUT_BACK: Duration = Duration::from_secs(1);

/// How long requests that are taken back at the end may take to tell so.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The bounds of serving.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Requests that run at once.
    pub running_max: usize,
    /// Requests of one caller that run at once.
    pub caller_running_max: usize,
    /// Stored requests in hand at once, running or waiting to; more are put back.
    pub waiting_max: usize,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            running_max: 1_024,
            caller_running_max: 256,
            waiting_max: 4_096,
        }
    }
}

/// A request as it came: stamped by the hub, and not yet read.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Who asks.
    pub from: From,
    /// The same as a principal of ours, where we are the hub.
    pub principal: Option<Arc<Principal>>,
    /// Names the request: for a stored one, among all of this caller for good.
    pub id: Arc<str>,
    /// What is wanted.
    pub body: Bytes,
    /// Until when an answer is of use.
    pub deadline: Now,
    /// Hears what the tool says before it answers.
    pub sink: Option<Arc<dyn CallerEnd>>,
}

/// The engine that answers requests.
#[derive(Debug)]
pub struct Serving {
    backend: Arc<dyn Backend>,
    ledger: Ledger,
    limits: ServeLimits,
    clock: Arc<dyn Clock>,
    seats: Seats,
    desk: Desk,
}

/// What came of a stored request.
struct Carried {
    answer: Answer,
    /// Where it is written down as begun, and not yet as done.
    entry: Option<Entry>,
}

impl Serving {
    /// Returns an engine that runs what `backend` has.
    #[must_use]
    pub fn new(
        backend: Arc<dyn Backend>,
        ledger: Ledger,
        limits: ServeLimits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            backend,
            ledger,
            limits,
            seats: Seats::new(limits.running_max, limits.caller_running_max),
            desk: Desk::default(),
            clock,
        }
    }

    /// Returns what remembers which requests ran.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns what somebody may use.
    pub async fn manifest(
        &self,
        from: &From,
        principal: Option<&Arc<Principal>>,
    ) -> Result<Manifest, Failure> {
        self.backend.manifest(from, principal).await
    }

    /// Answers a live request. Dropping the future takes it back.
    pub async fn live(&self, incoming: Incoming) -> Answer {
        let job = match self.read(&incoming, None) {
            Ok(job) => job,
            Err(failure) => return Answer::Failed(failure),
        };
        if matches!(job.ask, Ask::Manifest) {
            return self.list(&job).await;
        }
        let waited = tokio::time::timeout_at(
            self.clock.instant(job.deadline),
            self.seats.take(&job.from.session_id),
        );
        match waited.await {
            Ok(_seat) => self.run(&job).await,
            Err(_late) => Answer::Failed(failures::expired()),
        }
    }

    /// Deals with a stored request: it is carried out unless it was before, its reply is stored,
    /// what came of it is written down by its key, and then the request is ended, in that order.
    ///
    /// The same request may come again while it is dealt with; it runs once and is answered once.
    pub async fn stored(&self, incoming: Incoming, courier: &dyn Courier) {
        let key = Key {
            caller: Arc::clone(&incoming.from.session_id),
            id: Arc::clone(&incoming.id),
        };
        let turn = loop {
            match self.desk.enter(&key, self.limits.waiting_max) {
                Entered::Alone(turn) => break turn,
                Entered::Full => return courier.put_back(PUT_BACK).await,
                Entered::Beside(other) => match other.ended().await {
                    Some(Ended::Replied) => return courier.ack().await,
                    Some(Ended::Unreplied(answer)) => {
                        let told = tell(&answer, courier).await;
                        return close(told, courier).await;
                    }
                    // Whoever dealt with it went away; it is looked up anew.
                    None => {}
                },
            }
        };
        let Carried { answer, entry } = self.carry(&incoming, &key, &turn).await;
        let told = tell(&answer, courier).await;
        // Whether or not the reply found its way: what ran must not run again.
        if let Some(entry) = entry {
            self.remember(&entry, &answer).await;
        }
        turn.end(match told {
            Ok(()) => Ended::Replied,
            Err(_) => Ended::Unreplied(Arc::new(answer)),
        });
        close(told, courier).await;
    }

    /// Takes back a stored request of `caller`; `false` where it is not in hand.
    pub fn cancel(&self, caller: &Arc<str>, id: &Arc<str>) -> bool {
        self.desk.cancel(&Key {
            caller: Arc::clone(caller),
            id: Arc::clone(id),
        })
    }

    /// Takes no more stored requests, and takes those in hand back.
    pub fn abandon(&self) {
        self.desk.close();
        self.desk.cancel_all();
    }

    /// Takes no more stored requests and waits for those in hand; what is not done after `wait` is
    /// taken back, and answered so.
    pub async fn close(&self, wait: Duration) {
        let all = async {
            for other in self.desk.close() {
                other.ended().await;
            }
        };
        if tokio::time::timeout(wait, all).await.is_err() {
            self.desk.cancel_all();
            let last = async {
                for other in self.desk.close() {
                    other.ended().await;
                }
            };
            if tokio::time::timeout(LAST_WORDS, last).await.is_err() {
                tracing::warn!(left = self.desk.len(), "requests did not end in time");
            }
        }
    }

    /// Returns how many stored requests are in hand.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.desk.len()
    }

    fn at(&self) -> At {
        At {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
        }
    }

    /// Reads a request, and refuses what need not be begun.
    fn read(&self, incoming: &Incoming, key: Option<Arc<str>>) -> Result<Job, Failure> {
        let ask = Ask::read(&incoming.body).map_err(|bad| failures::bad_request(&bad))?;
        if incoming.deadline <= self.clock.now() {
            return Err(failures::expired());
        }
        let job = Job {
            from: incoming.from.clone(),
            principal: incoming.principal.clone(),
            ask,
            key,
            deadline: incoming.deadline,
            sink: incoming.sink.clone(),
        };
        self.backend.check(&job)?;
        Ok(job)
    }

    /// Finds or makes the answer of a stored request.
    async fn carry(&self, incoming: &Incoming, key: &Key, turn: &Turn<'_>) -> Carried {
        let name = format!("{}/{}", key.caller, key.id);
        let job = match self.read(incoming, Some(name.into())) {
            Ok(job) => job,
            Err(failure) => return self.refused(key, failure).await,
        };
        if matches!(job.ask, Ask::Manifest) {
            return Carried::plain(self.list(&job).await);
        }
        let seat = tokio::select! {
            biased;
            seat = self.seats.take(&key.caller) => seat,
            () = turn.cancelled() => {
                let failure = failures::cancelled(Execution::NotStarted);
                return self.refused(key, failure).await;
            }
            () = tokio::time::sleep_until(self.clock.instant(job.deadline)) => {
                return self.refused(key, failures::expired()).await;
            }
        };
        let entry = match self.backend.is_repeatable(&job) {
            true => None,
            false => match self.begin(key, incoming).await {
                Ok(entry) => Some(entry),
                Err(carried) => return carried,
            },
        };
        let answer = tokio::select! {
            biased;
            answer = self.run(&job) => answer,
            () = turn.cancelled() => Answer::Failed(failures::cancelled(Execution::Unknown)),
        };
        drop(seat);
        Carried { answer, entry }
    }

    /// Writes down that a request begins; what is known of it already is its answer.
    async fn begin(&self, key: &Key, incoming: &Incoming) -> Result<Entry, Carried> {
        let digest = Sha256::digest(&incoming.body).into();
        let what = (digest, incoming.body.clone());
        match self.ledger.begin(key.pair(), what, self.at()).await {
            Ok(Begun::Now(entry)) => Ok(entry),
            Ok(Begun::Answered(body)) => Err(Carried::plain(again(body))),
            Ok(Begun::Before(entry)) => Err(Carried {
                answer: Answer::Failed(failures::outcome_unknown()),
                entry,
            }),
            Err(JournalError::Conflict) => Err(Carried::failed(failures::conflict())),
            Err(error) => {
                let failure = failures::not_stored(&error, Execution::NotStarted);
                Err(Carried::failed(failure))
            }
        }
    }

    /// Answers a request that is not to be begun: by what came of it before, where it was begun
    /// before, and else by why it is refused.
    async fn refused(&self, key: &Key, failure: Failure) -> Carried {
        let known = async {
            if let Some(body) = self.ledger.answered(&key.caller, &key.id).await? {
                return Ok(Some(Carried::plain(again(body))));
            }
            let entry = self.ledger.begun(key.pair(), self.at()).await?;
            Ok::<_, JournalError>(entry.map(|entry| Carried {
                answer: Answer::Failed(failures::outcome_unknown()),
                entry: Some(entry),
            }))
        };
        match known.await {
            Ok(Some(carried)) => carried,
            Ok(None) => Carried::failed(failure),
            Err(error) => Carried::failed(failures::not_stored(&error, Execution::Unknown)),
        }
    }

    async fn list(&self, job: &Job) -> Answer {
        match self
            .backend
            .manifest(&job.from, job.principal.as_ref())
            .await
        {
            Ok(Manifest {
                revision, items, ..
            }) => Answer::Manifest { items, revision },
            Err(failure) => Answer::Failed(failure),
        }
    }

    /// Runs a tool, until its request is past its time. Where its caller can be asked, that may
    /// take as long as a person takes: then only whoever waits for the server knows what was its
    /// time.
    async fn run(&self, job: &Job) -> Answer {
        let may_ask = job.ask.context().is_some_and(|who| who.abilities.any());
        let until = match may_ask {
            true => job.deadline.plus(ASKED_MAX),
            false => job.deadline,
        };
        tokio::select! {
            biased;
            answer = self.backend.run(job) => answer,
            () = tokio::time::sleep_until(self.clock.instant(until)) => {
                Answer::Failed(failures::timeout())
            }
        }
    }

    async fn remember(&self, entry: &Entry, answer: &Answer) {
        let mut body = Vec::new();
        answer.write(Said::Whole, &mut body);
        if let Err(error) = self.ledger.end(entry, body.into(), self.at()).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "what came of a request could not be written down"
            );
        }
    }
}

impl Key {
    fn pair(&self) -> (&str, &str) {
        (&self.caller, &self.id)
    }
}

impl Carried {
    const fn plain(answer: Answer) -> Self {
        Self {
            answer,
            entry: None,
        }
    }

    const fn failed(failure: Failure) -> Self {
        Self::plain(Answer::Failed(failure))
    }
}

/// Reads an answer that was given before.
fn again(body: Option<Bytes>) -> Answer {
    let answer = body.and_then(|body| Answer::read(&body).ok());
    match answer {
        Some(Answer::Output { result, era, .. }) => Answer::Output {
            result,
            again: true,
            era,
        },
        Some(answer) => answer,
        None => Answer::Failed(failures::answer_forgotten()),
    }
}

/// Stores a reply; where it is too large, that is what is told.
async fn tell(answer: &Answer, courier: &dyn Courier) -> Result<(), ReplyError> {
    match courier.reply(answer).await {
        Err(ReplyError::TooLarge) => courier.reply(&Answer::Failed(failures::too_large())).await,
        other => other,
    }
}

/// Ends a request, or leaves it to come again.
async fn close(told: Result<(), ReplyError>, courier: &dyn Courier) {
    match told {
        Ok(()) => courier.ack().await,
        // Where the way itself is lost, this comes to nothing, and the request comes again anyway.
        Err(ReplyError::Lost) => courier.put_back(PUT_BACK).await,
        Err(ReplyError::TooLarge) => courier.bury("the reply is too large".into()).await,
        Err(ReplyError::Refused(reason)) => {
            tracing::warn!(%reason, "a reply was refused; its request is a dead letter");
            courier.bury(reason).await;
        }
    }
}
