//! Expected state, from the records of the writer, compared with the state found.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use bowline_journal::{Journal, MessageFilter, MessageStatus, MessageView};
use serde_json::{Value, json};

use crate::open::Clock;
use crate::plan;
use crate::record::{Op, OpPhase, OpRecord};

/// Messages per page.
const PAGE: usize = 1_000;

/// Broken promises printed in full.
const TOLD_MAX: usize = 10;

/// State of a message on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskState {
    /// Absent and unknown.
    Gone,
    Queued,
    DeadLetter,
    Completed,
}

/// Allowed states of a message.
#[derive(Clone, Copy, Debug)]
struct AllowedStates {
    /// Acknowledged state.
    sure: DiskState,
    /// State of an unacknowledged operation.
    open: Option<DiskState>,
    /// States of operations that failed as poisoned, as a bit set.
    unsure: u8,
    /// Last run that touched the message.
    run: u64,
}

/// Allowed values of a key.
#[derive(Clone, Copy, Debug, Default)]
struct AllowedValue {
    sure: u64,
    open: Option<u64>,
}

/// Expected state of the journal.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedState {
    fates: HashMap<u64, AllowedStates>,
    values: BTreeMap<u64, AllowedValue>,
    run: u64,
    /// Acknowledged operations, and publications among these.
    pub(crate) acknowledged: u64,
    pub(crate) published: u64,
    pub(crate) ended: u64,
    /// Refused operations, and operations that failed as poisoned.
    pub(crate) refused: u64,
    pub(crate) poisoned: u64,
    /// Operations acknowledged after the engine reported poisoning.
    pub(crate) after_poison: u64,
    pub(crate) opened: u64,
    pub(crate) shut: u64,
    pub(crate) misread: u64,
    pub(crate) over: u64,
    /// Acknowledged operations in order, if recorded.
    pub(crate) history: Option<Vec<OpRecord>>,
    /// Calls failed by the shim, by index of their name.
    pub(crate) hits: Vec<u16>,
    /// Operations acknowledged and refused after the first failed call.
    pub(crate) after_hit: u64,
    pub(crate) refused_after_hit: u64,
    /// Publications acknowledged after space was freed.
    pub(crate) after_room: u64,
    roomy: bool,
    poisoned_now: bool,
}

/// Counts of broken promises.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BrokenPromises {
    /// Acknowledged, but missing.
    pub(crate) lost: u64,
    /// Completed or removed, but present again.
    pub(crate) resurrected: u64,
    /// Present in the state before the acknowledged change.
    pub(crate) undone: u64,
    /// Present with wrong content.
    pub(crate) wrong: u64,
    /// Present but never published.
    pub(crate) invented: u64,
    /// Descriptions of the first broken promises.
    pub(crate) told: Vec<String>,
}

impl BrokenPromises {
    pub(crate) const fn total(&self) -> u64 {
        self.lost + self.resurrected + self.undone + self.wrong + self.invented
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.lost += other.lost;
        self.resurrected += other.resurrected;
        self.undone += other.undone;
        self.wrong += other.wrong;
        self.invented += other.invented;
        self.told.extend(other.told);
        self.told.truncate(TOLD_MAX);
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "lost": self.lost,
            "resurrected": self.resurrected,
            "undone": self.undone,
            "wrong": self.wrong,
            "invented": self.invented,
            "told": self.told,
        })
    }

    fn note_first(&mut self, words: String) {
        if self.told.len() < TOLD_MAX {
            self.told.push(words);
        }
    }

    /// Judges a message.
    fn judge_message(&mut self, number: u64, fate: AllowedStates, found: DiskState) {
        let unsure = fate.unsure & (1 << found as u8) != 0;
        if found == fate.sure || Some(found) == fate.open || unsure {
            return;
        }
        match (fate.sure, found) {
            (DiskState::Gone, _) if fate.open.is_none() => self.resurrected += 1,
            (DiskState::Completed, DiskState::Queued | DiskState::DeadLetter) => {
                self.resurrected += 1
            }
            (_, DiskState::Gone) => self.lost += 1,
            _ => self.undone += 1,
        }
        let AllowedStates {
            sure, open, run, ..
        } = fate;
        self.note_first(format!(
            "{number}: {sure:?} or {open:?}, is {found:?} (run {run})"
        ));
    }
}

/// Which kept results are looked up individually.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultLookup {
    /// Results of the current run.
    Recent,
    All,
}

/// State found in the journal.
#[derive(Debug, Default)]
pub(crate) struct FoundState {
    pub(crate) live: HashMap<u64, DiskState>,
    pub(crate) values: BTreeMap<u64, u64>,
}

impl ExpectedState {
    /// Applies a record of the writer.
    pub(crate) fn apply_record(&mut self, record: OpRecord) {
        match record.phase {
            OpPhase::Begun => self.begin_operation(record),
            OpPhase::Ended => {
                self.after_poison += u64::from(self.poisoned_now);
                self.after_room += u64::from(self.roomy);
                self.after_hit += u64::from(!self.hits.is_empty());
                self.end_operation(record);
            }
            OpPhase::Refused => {
                self.refused += 1;
                self.refused_after_hit += u64::from(!self.hits.is_empty());
                self.cancel_operation(record);
            }
            OpPhase::Poisoned => {
                self.poisoned += 1;
                self.refused_after_hit += u64::from(!self.hits.is_empty());
                self.poisoned_now = true;
                if let Some(fate) = self.fates.get_mut(&record.number)
                    && let Some(open) = state_after(record.op)
                {
                    fate.unsure |= 1 << open as u8;
                }
            }
            OpPhase::Opened => {
                self.opened += 1;
                self.run = record.number;
                self.poisoned_now = false;
            }
            OpPhase::OpenFailed => self.shut += 1,
            OpPhase::ReadFailed => self.misread += 1,
            OpPhase::Finished => self.over += 1,
            OpPhase::SpaceFreed => self.roomy = true,
            OpPhase::CallFailed => self.hits.push(record.detail),
        }
    }

    fn begin_operation(&mut self, record: OpRecord) {
        let run = self.run;
        match state_after(record.op) {
            Some(state) => {
                let none = AllowedStates {
                    sure: DiskState::Gone,
                    open: None,
                    unsure: 0,
                    run,
                };
                let fate = self.fates.entry(record.number).or_insert(none);
                fate.open = Some(state);
                fate.run = run;
            }
            None => {
                let worth = self.values.entry(u64::from(record.detail)).or_default();
                worth.open = Some(record.number);
            }
        }
    }

    fn end_operation(&mut self, record: OpRecord) {
        self.acknowledged += 1;
        if let Some(history) = &mut self.history {
            history.push(record);
        }
        self.published += u64::from(record.op == Op::Publish);
        self.ended += u64::from(record.op == Op::Ack);
        match state_after(record.op) {
            Some(state) => {
                let fate = AllowedStates {
                    sure: state,
                    open: None,
                    unsure: 0,
                    run: self.run,
                };
                self.fates.insert(record.number, fate);
            }
            None => {
                let worth = AllowedValue {
                    sure: record.number,
                    open: None,
                };
                self.values.insert(u64::from(record.detail), worth);
            }
        }
    }

    fn cancel_operation(&mut self, record: OpRecord) {
        match state_after(record.op) {
            Some(_) => {
                if let Some(fate) = self.fates.get_mut(&record.number) {
                    fate.open = None;
                }
            }
            None => {
                if let Some(worth) = self.values.get_mut(&u64::from(record.detail)) {
                    worth.open = None;
                }
            }
        }
    }

    /// Returns the numbers of all messages ever begun.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.fates.keys().copied()
    }

    /// Compares with the journal. Unacknowledged operations then count as found.
    pub(crate) async fn compare_journal(
        &mut self,
        journal: &dyn Journal,
        results: ResultLookup,
    ) -> Result<BrokenPromises> {
        let mut broken = BrokenPromises::default();
        let found = read_state(journal, &mut broken).await?;
        for number in found.live.keys() {
            if !self.fates.contains_key(number) {
                broken.invented += 1;
                broken.note_first(format!("nobody published {number}"));
            }
        }
        for (number, fate) in &mut self.fates {
            let recent =
                results == ResultLookup::All || fate.run == self.run || fate.open.is_some();
            let state = match found.live.get(number) {
                Some(state) => *state,
                None if !recent => continue,
                None => completed_state(journal, *number, &mut broken).await?,
            };
            broken.judge_message(*number, *fate, state);
            fate.sure = state;
            fate.open = None;
            fate.unsure = 0;
        }
        for (producer, worth) in &mut self.values {
            let nth = found.values.get(producer).copied().unwrap_or_default();
            if nth != worth.sure && Some(nth) != worth.open {
                broken.undone += 1;
                broken.note_first(format!("value {producer}: {worth:?}, is {nth}"));
            }
            *worth = AllowedValue {
                sure: nth,
                open: None,
            };
        }
        Ok(broken)
    }
}

/// Returns the message state after an operation; `None` for an operation on a value.
pub(crate) const fn state_after(op: Op) -> Option<DiskState> {
    match op {
        Op::Publish | Op::Nak | Op::Revive => Some(DiskState::Queued),
        Op::Ack => Some(DiskState::Completed),
        Op::Bury => Some(DiskState::DeadLetter),
        Op::Remove | Op::Withdraw => Some(DiskState::Gone),
        Op::Put | Op::None => None,
    }
}

/// Reads everything and checks each row against its number.
pub(crate) async fn read_state(
    journal: &dyn Journal,
    broken: &mut BrokenPromises,
) -> Result<FoundState> {
    let mut found = FoundState::default();
    let at = Clock::new().timestamps();
    let mut filter = MessageFilter {
        lanes: plan::PREFIX.to_owned(),
        limit: PAGE,
        ..MessageFilter::default()
    };
    let mut waiting = 0;
    loop {
        let page = journal.list_messages(filter.clone(), at).await?;
        let Some(last) = page.last() else { break };
        filter.after = Some(last.id);
        for entry in page {
            let Some(number) = parse_correct_view(&entry) else {
                broken.wrong += 1;
                broken.note_first(format!("{} says something else", entry.dedupe));
                continue;
            };
            let state = match entry.status {
                MessageStatus::Queued | MessageStatus::Leased => DiskState::Queued,
                MessageStatus::DeadLetter(_) => DiskState::DeadLetter,
                // A damaged row has no correct content and was counted above.
                MessageStatus::Damaged => continue,
            };
            waiting += u64::from(state == DiskState::Queued);
            if found.live.insert(number, state).is_some() {
                broken.wrong += 1;
                broken.note_first(format!("{number} is there twice"));
            }
        }
    }
    let counted: u64 = journal
        .lane_stats(plan::PREFIX, at)
        .await?
        .iter()
        .map(|lane| lane.queued)
        .sum();
    if counted != waiting {
        broken.wrong += 1;
        broken.note_first(format!("lanes count {counted}, {waiting} wait"));
    }
    for (key, value) in journal.list_values(plan::PREFIX, usize::MAX).await? {
        let producer = key
            .rsplit('/')
            .next()
            .and_then(|word| word.parse::<u64>().ok());
        let nth = value
            .bytes
            .first_chunk()
            .map(|chunk| u64::from_le_bytes(*chunk));
        match producer.zip(nth) {
            Some((producer, nth)) if plan::value_bytes(producer, nth) == value.bytes => {
                found.values.insert(producer, nth);
            }
            _ => {
                broken.wrong += 1;
                broken.note_first(format!("the value of {key} says something else"));
            }
        }
    }
    Ok(found)
}

/// Returns the number of a correct view.
fn parse_correct_view(entry: &MessageView) -> Option<u64> {
    let number = plan::parse_dedupe_id(&entry.dedupe)?;
    let reason = match &entry.status {
        MessageStatus::DeadLetter(reason) => *reason == plan::number_reason(number),
        MessageStatus::Queued | MessageStatus::Leased => true,
        MessageStatus::Damaged => false,
    };
    let well = reason
        && entry.body == plan::number_body(number)
        && plan::number_lane(number).is_ok_and(|lane| lane == entry.lane)
        && entry.expires_unix_ms.is_none();
    well.then_some(number)
}

/// Returns the state of a message that is not live.
pub(crate) async fn completed_state(
    journal: &dyn Journal,
    number: u64,
    broken: &mut BrokenPromises,
) -> Result<DiskState> {
    let lane = plan::number_lane(number)?;
    let Some(done) = journal
        .get_result(&lane, &plan::number_dedupe_id(number))
        .await?
    else {
        return Ok(DiskState::Gone);
    };
    if done.result != Some(plan::number_result(number)) {
        broken.wrong += 1;
        broken.note_first(format!("the result of {number} says something else"));
    }
    Ok(DiskState::Completed)
}
