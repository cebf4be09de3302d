//! One stored write on its way to its server, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Reply;
use bowline_core::error::CallError;
use bowline_core::lane::{PACE, POISON_TRIES_MAX, Verdict, is_own_limit, may_be_poison, replayed};
use bowline_core::sync::lock;
use bowline_journal::audit::Kind;
use bowline_journal::{Delivery, Done, Entry, JournalError, Lane, MessageId, Receipt, Standing};

use super::Shared;
use super::index::Ended;
use super::intent::{is_question, kept, result_of};
use super::letter::{Letter, Sight};
use super::record::Record;
use super::tell::Over;
use crate::audit::End;
use crate::callpath::CallPath;

/// Why a write is not delivered whose credential a person revoked.
const REVOKED: &str = "the credential that made it was revoked";

/// What came of sending a stored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The server answered.
    Answered,
    /// It is over without an answer of the server.
    Passed,
    /// It failed alone, and is tried again after this; it is still leased.
    Rests(Duration),
    /// It failed, and whether the server is away is for others to show; it is still leased.
    Suspect {
        /// When it is tried again, should others get through.
        rest: Duration,
        /// For how long the server is left alone, should they not.
        after: Option<Duration>,
    },
    /// The server was away; it was given back.
    Away(Option<Duration>),
}

/// How many calls a server had answered before and after another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) before: u64,
    pub(super) after: u64,
}

/// Sends a stored write, and writes down what became of it.
pub(super) async fn deliver(
    shared: &Arc<Shared>,
    path: &CallPath,
    lane: &Lane,
    delivery: &Delivery,
) -> Result<Sent, JournalError> {
    let receipt = delivery.receipt;
    let Some(record) = Record::read(&delivery.body) else {
        tracing::error!(id = receipt.id.0, "a queued write cannot be read");
        let (journal, at) = (&shared.journal, shared.at());
        let reason = "it is written in a form that is not known".into();
        journal.bury(receipt, reason, at).await?;
        return Ok(Sent::Passed);
    };
    let is_revoked = lock(&shared.notes)
        .revoked
        .contains(record.head.credential());
    if is_revoked {
        revoke(shared, receipt, &record).await?;
        return Ok(Sent::Passed);
    }
    // It may have been stored before such names were refused at the door.
    if !record.is_clear() {
        let error = CallError::AmbiguousNames {
            server: Arc::clone(&record.head.server),
            tool: Arc::clone(&record.head.tool),
        };
        return failed(shared, receipt, &record, (error, Served::default())).await;
    }
    let call = record.call();
    let (server, key) = (&record.head.server, record.head.sent_key());
    let before = path.answered_calls(server);
    match path.replay(&call, server, key).await {
        Ok(reply) => answered(shared, (lane, delivery), &record, reply).await,
        Err(error) => {
            let served = Served {
                before,
                after: path.answered_calls(server),
            };
            failed(shared, receipt, &record, (error, served)).await
        }
    }
}

/// The server answered: it took the write, or it never will.
async fn answered(
    shared: &Shared,
    (lane, delivery): (&Lane, &Delivery),
    record: &Record,
    reply: Reply,
) -> Result<Sent, JournalError> {
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
        return Ok(Sent::Answered);
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
    Ok(Sent::Answered)
}

async fn failed(
    shared: &Shared,
    receipt: Receipt,
    record: &Record,
    (error, served): (CallError, Served),
) -> Result<Sent, JournalError> {
    let after = match replayed(&error) {
        Verdict::Wait(after) => after,
        Verdict::Refused | Verdict::Ran => {
            let why = (error.to_string().into(), End::Failed(error));
            bury(shared, receipt, record, why).await?;
            return Ok(Sent::Passed);
        }
    };
    shared.failed(receipt.id, &error);
    if is_own_limit(&error) {
        return Ok(Sent::Rests(after.unwrap_or(PACE.base)));
    }
    if may_be_poison(&error) {
        let (tries, serves) = lock(&shared.notes).count_try(receipt.id, served);
        if tries >= POISON_TRIES_MAX {
            let reason = format!(
                "it failed {tries} times while the server served other calls, the last time so: \
                 {error}"
            );
            let why = (reason.into(), End::Failed(error));
            bury(shared, receipt, record, why).await?;
            return Ok(Sent::Passed);
        }
        let rest = PACE.wait(tries.max(1), shared.jitter(&record.head.key));
        return Ok(match serves {
            true => Sent::Rests(rest),
            false => Sent::Suspect { rest, after },
        });
    }
    shared.give_back(receipt).await?;
    Ok(Sent::Away(after))
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
    pub(super) fn is_dead(&self, entry: &Entry, record: &Record, (kind, end): (Kind, End)) {
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
