//! Delivers what waits: lane by lane in order, one try at a time to a server that is not known to
//! be up, and all lanes side by side to one that is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::call::Reply;
use bowline_core::error::CallError;
use bowline_core::lane::{Verdict, replayed};
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::audit::Kind;
use bowline_journal::{
    Delivery, Done, Entry, JournalError, Lane, MessageId, Order, Receipt, Standing,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use super::index::Ended;
use super::intent::{is_question, kept, result_of};
use super::letter::{Letter, Sight, parties};
use super::record::Record;
use super::tell::Over;
use super::{LANES, Shared};
use crate::audit::End;
use crate::callpath::CallPath;
use crate::events::{Event, What};

/// A write that is being delivered is nobody else's for so long.
const HOLD: Duration = Duration::from_secs(15 * 60);

/// A lane whose first message is held by its caller is looked at again after so long, should
/// nobody say that it is free.
const BLOCKED_WAIT: Duration = Duration::from_secs(60);

/// How often writes are looked for that are past their time.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How long what is under way may take to end when the gateway goes down.
const END_WAIT: Duration = Duration::from_secs(1);

/// Why a write is not delivered whose credential a person revoked.
const REVOKED: &str = "the credential that made it was revoked";

/// What came of one look into a lane.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The server answered.
    Answered,
    /// It went on without the server.
    Passed,
    /// There is nothing in it.
    Empty,
    /// Its first message is somebody else's.
    Blocked,
    /// The server was away.
    Failed(Option<Duration>),
}

/// Delivers until the gateway goes down or is gone.
pub(super) async fn run(
    shared: Arc<Shared>,
    path: Weak<CallPath>,
    mut events: broadcast::Receiver<Event>,
    end: watch::Sender<bool>,
) {
    let mut steps = JoinSet::new();
    let mut closing = shared.closing.clone();
    load(&shared).await;
    let mut sweep = shared.clock.now().plus(SWEEP_EVERY);
    loop {
        start(&shared, &path, &mut steps);
        let due = {
            let known = reachable(&path);
            let board = lock(&shared.board);
            let next = board.due(&known);
            let sweep = (!board.is_empty()).then_some(sweep);
            next.into_iter().chain(sweep).min()
        };
        tokio::select! {
            biased;
            gone = closing.wait_for(|closing| *closing) => {
                drop(gone);
                break;
            }
            () = shared.poke.notified() => {}
            Some(_) = steps.join_next(), if !steps.is_empty() => {}
            event = events.recv() => heard(&shared, event),
            () = until(&shared, due), if due.is_some() => {}
        }
        let now = shared.clock.now();
        if sweep <= now {
            sweep = now.plus(SWEEP_EVERY);
            // Each look makes a bounded number of dead letters.
            while expire(&shared, LANES).await > 0 {}
        }
    }
    let all = async { while steps.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_WAIT, all).await;
    drop(steps);
    end.send_replace(true);
}

/// Notes what was left when the gateway last went down.
async fn load(shared: &Shared) {
    if let Err(error) = shared.index.load(&*shared.journal).await {
        tracing::warn!(%error, "delivered writes cannot be shown");
    }
    let lanes = shared.journal.lanes(LANES, shared.at()).await;
    let lanes = match lanes {
        Ok(lanes) => lanes,
        Err(error) => {
            tracing::error!(%error, "queued writes cannot be read");
            return;
        }
    };
    let now = shared.clock.now();
    let mut board = lock(&shared.board);
    for lane in lanes.iter().filter(|lane| lane.waiting > 0) {
        let (_, server) = parties(lane.lane.as_str());
        board.note(&lane.lane.as_str().into(), &server.into(), now);
    }
}

/// Says of a server whether it is configured.
fn reachable(path: &Weak<CallPath>) -> impl Fn(&str) -> bool + use<> {
    let servers = path.upgrade().map(|path| path.servers.load_full());
    move |server| servers.as_ref().is_some_and(|all| all.contains_key(server))
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock.instant(due)).await;
    }
}

/// Has every lane send that may.
fn start(shared: &Arc<Shared>, path: &Weak<CallPath>, steps: &mut JoinSet<()>) {
    let known = reachable(path);
    let now = shared.clock.now();
    loop {
        let next = lock(&shared.board).next(now, &known);
        let Some((lane, path)) = next.zip(path.upgrade()) else {
            return;
        };
        let shared = Arc::clone(shared);
        steps.spawn(async move { step(&shared, &path, &lane).await });
    }
}

fn heard(shared: &Shared, event: Result<Event, RecvError>) {
    let now = shared.clock.now();
    let mut board = lock(&shared.board);
    match event {
        Ok(Event {
            what:
                What::State {
                    server,
                    state: "ready",
                    ..
                },
            ..
        }) => board.ready(&server, now),
        Ok(_) | Err(RecvError::Closed) => {}
        // Whatever was missed, one try for each server is cheap.
        Err(RecvError::Lagged(_)) => {
            let lanes: Vec<_> = board.names().cloned().collect();
            for lane in lanes {
                board.ready(parties(&lane).1, now);
            }
        }
    }
}

/// Looks into a lane once, and notes on the board what came of it.
async fn step(shared: &Arc<Shared>, path: &CallPath, name: &Arc<str>) {
    let outcome = look(shared, path, name).await;
    let (now, jitter) = (shared.clock.now(), shared.jitter(name));
    let mut board = lock(&shared.board);
    match outcome {
        Ok(Step::Answered) => board.answered(name, now),
        Ok(Step::Passed) => board.passed(name, now),
        Ok(Step::Empty) => board.emptied(name, now),
        Ok(Step::Blocked) => board.blocked(name, now.plus(BLOCKED_WAIT), now),
        Ok(Step::Failed(after)) => board.failed(name, after, now, jitter),
        Err(error) => {
            tracing::error!(lane = %name, %error, "a lane cannot be read or written");
            board.failed(name, None, now, jitter);
        }
    }
}

async fn look(shared: &Arc<Shared>, path: &CallPath, name: &str) -> Result<Step, JournalError> {
    let lane = Lane::new(name)?;
    let (journal, at) = (&shared.journal, shared.at());
    let first = journal.lease(&lane, Order::Strict, 1, HOLD, at).await?;
    if let Some(delivery) = first.into_iter().next() {
        return deliver(shared, path, &lane, delivery).await;
    }
    if expire(shared, name).await > 0 {
        return Ok(Step::Passed);
    }
    let lanes = journal.lanes(name, at).await?;
    let is_full = lanes.iter().any(|one| one.lane == lane && one.waiting > 0);
    Ok(match is_full {
        true => Step::Blocked,
        false => Step::Empty,
    })
}

/// Makes dead letters of what is past its time, and tells of it.
async fn expire(shared: &Shared, lanes: &str) -> usize {
    let past = shared.journal.expire(lanes, shared.at()).await;
    let past = past.unwrap_or_else(|error| {
        tracing::error!(%error, "queued writes cannot be looked through");
        Vec::new()
    });
    for entry in &past {
        if let Some(record) = Record::read(&entry.body) {
            let end = End::Word("expired");
            shared.is_dead(entry, &record, (Kind::Expired, end));
        }
    }
    past.len()
}

async fn deliver(
    shared: &Arc<Shared>,
    path: &CallPath,
    lane: &Lane,
    delivery: Delivery,
) -> Result<Step, JournalError> {
    let receipt = delivery.receipt;
    let Some(record) = Record::read(&delivery.body) else {
        tracing::error!(id = receipt.id.0, "a queued write cannot be read");
        let (journal, at) = (&shared.journal, shared.at());
        let reason = "it is written in a form that is not known".into();
        journal.bury(receipt, reason, at).await?;
        return Ok(Step::Passed);
    };
    let is_revoked = lock(&shared.notes)
        .revoked
        .contains(record.head.credential());
    if is_revoked {
        revoke(shared, receipt, &record).await?;
        return Ok(Step::Passed);
    }
    // It may have been stored before such names were refused at the door.
    if !record.is_clear() {
        let error = CallError::AmbiguousNames {
            server: Arc::clone(&record.head.server),
            tool: Arc::clone(&record.head.tool),
        };
        return failed(shared, receipt, &record, error).await;
    }
    let call = record.call();
    let key = record.head.sent_key();
    match path.replay(&call, &record.head.server, key).await {
        Ok(reply) => answered(shared, (lane, &delivery), &record, reply).await,
        Err(error) => failed(shared, receipt, &record, error).await,
    }
}

/// The server answered: it took the write, or it never will.
async fn answered(
    shared: &Shared,
    (lane, delivery): (&Lane, &Delivery),
    record: &Record,
    reply: Reply,
) -> Result<Step, JournalError> {
    let (receipt, at) = (delivery.receipt, shared.at());
    let Some(result) = result_of(&reply) else {
        let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        let why = match is_question(&reply) {
            true => "the server asks for something, and nobody is there to answer",
            false => "the server refused it",
        };
        let reason = format!("{why}: {}", shown(body));
        let end = End::Reply(reply);
        bury(shared, receipt, record, (reason.into(), end)).await?;
        return Ok(Step::Answered);
    };
    let result = kept(result);
    let done = Done {
        id: receipt.id,
        result: result.clone(),
        unix_ms: at.unix_ms,
    };
    let (journal, place) = (&*shared.journal, (lane, &*delivery.dedupe));
    // Both at once: they are written together.
    let (acked, noted) = tokio::join!(
        journal.ack(receipt, result, at),
        shared.index.note(journal, receipt.id, place),
    );
    if let Err(error) = noted {
        tracing::warn!(id = receipt.id.0, %error, "a delivered write cannot be shown later");
    }
    acked?;
    let letter = Letter::ended(&Ended {
        lane: lane.clone(),
        dedupe: Arc::clone(&delivery.dedupe),
        done,
    });
    shared.is_over(Over {
        id: receipt.id,
        record,
        letter: &letter,
        kind: Kind::Delivered,
        end: End::Reply(reply),
    });
    Ok(Step::Answered)
}

async fn failed(
    shared: &Shared,
    receipt: Receipt,
    record: &Record,
    error: CallError,
) -> Result<Step, JournalError> {
    let at = shared.at();
    match replayed(&error) {
        Verdict::Wait(after) => {
            shared.failed(receipt.id, &error);
            shared.journal.nak(receipt, Duration::ZERO, at).await?;
            Ok(Step::Failed(after))
        }
        Verdict::Refused | Verdict::Ran => {
            let why = (error.to_string().into(), End::Failed(error));
            bury(shared, receipt, record, why).await?;
            Ok(Step::Passed)
        }
    }
}

/// Makes a dead letter of a write whose credential a person revoked.
pub(super) async fn revoke(
    shared: &Shared,
    receipt: Receipt,
    record: &Record,
) -> Result<(), JournalError> {
    let why = (REVOKED.into(), End::Word("revoked"));
    bury(shared, receipt, record, why).await
}

/// Makes a dead letter of a write, and tells of it.
async fn bury(
    shared: &Shared,
    receipt: Receipt,
    record: &Record,
    (reason, end): (Arc<str>, End),
) -> Result<(), JournalError> {
    let (journal, at) = (&shared.journal, shared.at());
    journal.bury(receipt, Arc::clone(&reason), at).await?;
    match journal.entry(receipt.id, at).await? {
        Some(entry) => shared.is_dead(&entry, record, (Kind::Dead, end)),
        None => tracing::warn!(id = receipt.id.0, %reason, "a dead letter is gone already"),
    }
    Ok(())
}

impl Shared {
    fn is_dead(&self, entry: &Entry, record: &Record, (kind, end): (Kind, End)) {
        debug_assert!(matches!(entry.standing, Standing::Dead(_)));
        let letter = Letter::of(entry, None, self.sight(None));
        self.is_over(Over {
            id: entry.id,
            record,
            letter: &letter,
            kind,
            end,
        });
    }

    pub(super) fn sight(&self, lane: Option<&str>) -> Sight {
        Sight {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
            times: lane.and_then(|lane| lock(&self.board).times(lane)),
        }
    }

    pub(super) fn error_of(&self, id: MessageId) -> Option<Arc<str>> {
        lock(&self.notes).error(id)
    }
}

/// Of what a server answered, so many characters are kept as the reason.
const REASON_CHARS_MAX: usize = 500;

fn shown(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    match text.char_indices().nth(REASON_CHARS_MAX) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text.into_owned(),
    }
}
