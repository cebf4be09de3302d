//! What people do with queued writes: look, try again, drop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Principal, Role, Scope};
use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bowline_journal::{
    Entry, Filter, Health, Journal, JournalError, Lane, MessageId, Order, Standing,
};
use thiserror::Error;

use super::answer::URI;
use super::letter::{LaneLetters, Letter, ServerLetters, parties};
use super::record::Record;
use super::tell::PLACE;
use super::{LANES, ORDER_PERMITS, Shared, deliver};
use crate::host::Host;

/// Writes that one look returns at most.
pub const LETTERS_MAX: usize = 1_000;

/// How long writes are held while those of a credential are picked out.
const PICK_HOLD: Duration = Duration::from_secs(60);

/// Writes that are looked at at once for that.
const PICK_MAX: usize = 256;

/// Credentials that are remembered as revoked, for writes that were under way then.
const REVOKED_MAX: usize = 10_000;

/// Why something was not done with a queued write.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OutboxError {
    /// There is no such write, or it was delivered.
    #[error("no write `{id}` waits")]
    Unknown {
        /// The number asked for.
        id: Arc<str>,
    },
    /// It is being delivered.
    #[error("the write `{id}` is being delivered")]
    Sending {
        /// The number asked for.
        id: Arc<str>,
    },
    /// The journal failed.
    #[error("the journal failed")]
    Journal(#[from] JournalError),
}

/// The queued writes of a host.
#[derive(Clone, Debug)]
pub struct OutboxHandle {
    host: Host,
}

impl Host {
    /// Returns the writes that wait for their servers.
    #[must_use]
    pub fn outbox(&self) -> OutboxHandle {
        OutboxHandle { host: self.clone() }
    }
}

impl Host {
    /// Whether a principal may see a write of its own at an endpoint: as it may see its tool.
    fn sees_letter(&self, principal: &Principal, scope: &Scope, letter: &Letter) -> bool {
        let is_elsewhere = matches!(scope, Scope::Server(only) if *only != letter.server);
        !is_elsewhere && self.may_be_told(principal, scope, letter.about())
    }
}

impl OutboxHandle {
    fn shared(&self) -> &Arc<Shared> {
        self.host.outbox_shared()
    }

    /// Returns what remembers them, and all that this host is to remember.
    #[must_use]
    pub fn journal(&self) -> &Arc<dyn Journal> {
        &self.shared().journal
    }

    /// Returns what the journal can do at the moment.
    #[must_use]
    pub fn health(&self) -> Health {
        self.shared().journal.health()
    }

    /// Returns all lanes in which something waits or is dead, sorted.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn lanes(&self) -> Result<Vec<LaneLetters>, OutboxError> {
        let shared = self.shared();
        let at = shared.at();
        let lanes = shared.journal.lanes(LANES, at).await?;
        let views = lanes.iter().map(|view| {
            let (principal, server) = parties(view.lane.as_str());
            let oldest = view.oldest_unix_ms;
            LaneLetters {
                principal: principal.into(),
                server: server.into(),
                configured: self.host.server(server).is_ok(),
                queued: view.waiting,
                dead: view.dead,
                oldest_age_ms: oldest.map(|stored| at.unix_ms.saturating_sub(stored)),
            }
        });
        Ok(views.collect())
    }

    /// Returns what waits for each server, and what of it is dead.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn stats(&self) -> Result<BTreeMap<Arc<str>, ServerLetters>, OutboxError> {
        let mut all: BTreeMap<Arc<str>, ServerLetters> = BTreeMap::new();
        for lane in self.lanes().await? {
            let server = all.entry(lane.server).or_default();
            server.queued += lane.queued;
            server.dead += lane.dead;
            server.oldest_age_ms = server.oldest_age_ms.max(lane.oldest_age_ms);
        }
        Ok(all)
    }

    /// Returns writes that wait or are dead, oldest first: those after `after`, up to `limit` and
    /// never more than [`LETTERS_MAX`].
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn ls(&self, after: Option<u64>, limit: usize) -> Result<Vec<Letter>, OutboxError> {
        let shared = self.shared();
        let filter = Filter {
            lanes: LANES.to_owned(),
            after: after.map(MessageId),
            dead: None,
            limit: limit.min(LETTERS_MAX),
        };
        let entries = shared.journal.inspect(filter, shared.at()).await?;
        Ok(entries.iter().map(|entry| shared.letter(entry)).collect())
    }

    /// Returns one write with what it says, or with what came of it.
    ///
    /// # Errors
    /// There is none, or the journal cannot be read.
    pub async fn show(&self, id: &str) -> Result<Letter, OutboxError> {
        let shared = self.shared();
        let number = number(id)?;
        if let Some(entry) = shared.entry(number).await? {
            return Ok(shared.letter(&entry).opened(&entry));
        }
        let ended = shared.index.find(&*shared.journal, number).await?;
        ended
            .map(|ended| Letter::ended(&ended))
            .ok_or_else(|| unknown(id))
    }

    /// Returns what a principal may read at `bowline://outbox/{id}` of an endpoint: one JSON object,
    /// and nothing where the write is somebody else's. The owner reads all. A write is decided as
    /// its tool: who does not see that here, for a context, a profile or another endpoint, does not
    /// see the write either; who lost the tool with a role is told no result.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn read(
        &self,
        principal: &Principal,
        scope: &Scope,
        uri: &str,
    ) -> Result<Option<String>, OutboxError> {
        let Some(id) = uri.strip_prefix(URI) else {
            return Ok(None);
        };
        let letter = match self.show(id).await {
            Ok(letter) => letter,
            Err(OutboxError::Unknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_own = letter.principal == principal.name || principal.role == Role::Owner;
        let is_seen = is_own && self.host.sees_letter(principal, scope, &letter);
        Ok(is_seen.then(|| letter.told()))
    }

    /// Has a session told when a write of its principal is over, and says whether there is one.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn subscribe(
        &self,
        (principal, scope): (&Principal, &Scope),
        session: SessionKey,
        uri: &str,
    ) -> Result<bool, OutboxError> {
        if self.read(principal, scope, uri).await?.is_none() {
            return Ok(false);
        }
        self.shared().memory.meet(session, principal, scope);
        let (place, uri) = (Arc::from(PLACE), Arc::from(uri));
        let memory = &self.shared().memory;
        // Who has as many subscriptions as he may still can read.
        let _full = memory.subscribe(principal, session, (&place, &uri), &uri);
        Ok(true)
    }

    /// Tries a write again: now where it waits, and as a new last one of its lane where it is
    /// dead.
    ///
    /// # Errors
    /// There is none, or the journal failed.
    pub async fn retry(&self, id: &str) -> Result<(), OutboxError> {
        let shared = self.shared();
        let entry = self.entry(id).await?;
        if matches!(entry.standing, Standing::Dead(_)) {
            let record = Record::read(&entry.body);
            let ttl = record.map(|record| Duration::from_millis(record.head.keep_ms));
            shared.journal.revive(entry.id, ttl, shared.at()).await?;
        }
        shared.hurry(&entry.lane);
        Ok(())
    }

    /// Forgets a write for good: it is not delivered, and its key is free.
    ///
    /// # Errors
    /// There is none, it is being delivered, or the journal failed.
    pub async fn drop_letter(&self, id: &str) -> Result<(), OutboxError> {
        let shared = self.shared();
        let entry = self.entry(id).await?;
        let removed = shared.journal.remove(entry.id, shared.at()).await;
        removed.map_err(|error| match error {
            JournalError::Lapsed => OutboxError::Sending { id: id.into() },
            JournalError::Unknown => unknown(id),
            other => other.into(),
        })?;
        if let Some(record) = Record::read(&entry.body) {
            let letter = shared.letter(&entry);
            shared.is_dropped(entry.id, &record, letter);
        }
        shared.hurry(&entry.lane);
        Ok(())
    }

    /// Makes dead letters of all writes that wait and that this credential made, and returns how
    /// many there were. One that is under way just then is not sent a second time.
    ///
    /// # Errors
    /// The journal failed; some may be dead already.
    pub async fn withdraw_of_credential(&self, credential: &str) -> Result<usize, OutboxError> {
        if credential.is_empty() {
            return Ok(0);
        }
        let shared = self.shared();
        {
            let mut notes = lock(&shared.notes);
            if notes.revoked.len() >= REVOKED_MAX {
                notes.revoked.pop_first();
            }
            notes.revoked.insert(credential.into());
        }
        // The drain leases nothing meanwhile: what is picked out here is put back in its place.
        let all = u32::try_from(ORDER_PERMITS).unwrap_or(u32::MAX);
        let _order = shared.order.acquire_many(all).await;
        let mut count = 0;
        for view in shared.journal.lanes(LANES, shared.at()).await? {
            if view.waiting > 0 {
                count += self.pick(&view.lane, credential).await?;
                shared.hurry(&view.lane);
            }
        }
        Ok(count)
    }

    /// Picks the writes of a credential out of a lane.
    async fn pick(&self, lane: &Lane, credential: &str) -> Result<usize, OutboxError> {
        let shared = self.shared();
        let (mut count, mut others) = (0, Vec::new());
        loop {
            let (journal, at) = (&shared.journal, shared.at());
            let some = journal.lease(lane, Order::Any, PICK_MAX, PICK_HOLD, at);
            let some = some.await?;
            if some.is_empty() {
                break;
            }
            for delivery in some {
                let record = Record::read(&delivery.body);
                match record.filter(|record| **record.head.credential() == *credential) {
                    Some(record) => {
                        deliver::revoke(shared, delivery.receipt, &record).await?;
                        count += 1;
                    }
                    None => others.push(delivery.receipt),
                }
            }
        }
        for receipt in others {
            shared.give_back(receipt).await?;
        }
        Ok(count)
    }

    async fn entry(&self, id: &str) -> Result<Entry, OutboxError> {
        let entry = self.shared().entry(number(id)?).await?;
        entry.ok_or_else(|| unknown(id))
    }
}

impl Shared {
    async fn entry(&self, id: MessageId) -> Result<Option<Entry>, OutboxError> {
        let entry = match self.journal.entry(id, self.at()).await {
            Err(error @ JournalError::Damaged { .. }) => {
                Some(self.damaged_entry(id).await?.ok_or(error)?)
            }
            entry => entry?,
        };
        Ok(entry.filter(|entry| entry.lane.as_str().starts_with(LANES)))
    }

    /// Returns what is left of a write whose row is damaged, so that it can be shown and dropped.
    async fn damaged_entry(&self, id: MessageId) -> Result<Option<Entry>, JournalError> {
        let filter = Filter {
            lanes: LANES.to_owned(),
            after: Some(MessageId(id.0.saturating_sub(1))),
            limit: 1,
            ..Filter::default()
        };
        let entries = self.journal.inspect(filter, self.at()).await?;
        Ok(entries.into_iter().find(|entry| entry.id == id))
    }

    fn letter(&self, entry: &Entry) -> Letter {
        let sight = self.sight(Some(entry.lane.as_str()));
        Letter::of(entry, self.error_of(entry.id), sight)
    }

    /// Has a lane tried at once.
    fn hurry(&self, lane: &Lane) {
        let (_, server) = parties(lane.as_str());
        let now = self.clock.now();
        let mut board = lock(&self.board);
        board.note(&lane.as_str().into(), &server.into(), now);
        board.hurry(lane.as_str(), now);
        drop(board);
        self.wake_lane(lane.as_str());
        self.poke.notify_one();
    }
}

fn number(id: &str) -> Result<MessageId, OutboxError> {
    id.parse().map(MessageId).map_err(|_| unknown(id))
}

fn unknown(id: &str) -> OutboxError {
    OutboxError::Unknown { id: id.into() }
}
