//! What must be there, as the writer told it, and what is there.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use bowline_journal::{Entry, Filter, Journal, Standing};
use serde_json::{Value, json};

use crate::open::Clock;
use crate::plan;
use crate::record::{Op, Phase, Record};

/// Messages that are read at once.
const PAGE: usize = 1_000;

/// Broken promises that are told word by word.
const TOLD_MAX: usize = 10;

/// How a message stands on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is not there, and nothing is known of it.
    Gone,
    Waiting,
    Dead,
    Done,
}

/// What may be found of a message.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// What was acknowledged.
    sure: State,
    /// What was asked for and not answered.
    open: Option<State>,
    /// What was asked for of an engine that then knew nothing any more; a bit for each state.
    unsure: u8,
    /// The last run that had to do with it.
    run: u64,
}

/// What may be found of a value.
#[derive(Clone, Copy, Debug, Default)]
struct Worth {
    sure: u64,
    open: Option<u64>,
}

/// What must be there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    fates: HashMap<u64, Fate>,
    values: BTreeMap<u64, Worth>,
    run: u64,
    /// Operations that were acknowledged, and publications among them.
    pub(crate) acknowledged: u64,
    pub(crate) published: u64,
    pub(crate) ended: u64,
    /// Operations that were refused, and those of which the engine knew nothing any more.
    pub(crate) refused: u64,
    pub(crate) poisoned: u64,
    /// Operations that were acknowledged after the engine had said that it can promise nothing.
    pub(crate) after_poison: u64,
    pub(crate) opened: u64,
    pub(crate) shut: u64,
    pub(crate) misread: u64,
    pub(crate) over: u64,
    /// What was acknowledged, in order, where somebody asked to keep it.
    pub(crate) history: Option<Vec<Record>>,
    /// Calls that the shim failed, by their names' numbers.
    pub(crate) hits: Vec<u16>,
    /// Operations that were acknowledged after the first failed call, and that were not.
    pub(crate) after_hit: u64,
    pub(crate) refused_after_hit: u64,
    /// Publications that were acknowledged after there was room again.
    pub(crate) after_room: u64,
    roomy: bool,
    poisoned_now: bool,
}

/// How many promises were broken, by how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Acknowledged, and not there.
    pub(crate) lost: u64,
    /// Ended, and there again.
    pub(crate) resurrected: u64,
    /// There, but as it was before the acknowledged change.
    pub(crate) undone: u64,
    /// There, and it says something else.
    pub(crate) wrong: u64,
    /// Nobody asked for it.
    pub(crate) invented: u64,
    /// The first of them, in words.
    pub(crate) told: Vec<String>,
}

impl Broken {
    pub(crate) const fn count(&self) -> u64 {
        self.lost + self.resurrected + self.undone + self.wrong + self.invented
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.resurrected += other.resurrected;
        self.undone += other.undone;
        self.wrong += other.wrong;
        self.invented += other.invented;
        self.told.extend(other.told);
        self.told.truncate(TOLD_MAX);
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "lost": self.lost,
            "resurrected": self.resurrected,
            "undone": self.undone,
            "wrong": self.wrong,
            "invented": self.invented,
            "told": self.told,
        })
    }

    fn tell(&mut self, words: String) {
        if self.told.len() < TOLD_MAX {
            self.told.push(words);
        }
    }

    /// Judges one message.
    fn judge(&mut self, number: u64, fate: Fate, found: State) {
        let unsure = fate.unsure & (1 << found as u8) != 0;
        if found == fate.sure || Some(found) == fate.open || unsure {
            return;
        }
        match (fate.sure, found) {
            (State::Gone, _) if fate.open.is_none() => self.resurrected += 1,
            (State::Done, State::Waiting | State::Dead) => self.resurrected += 1,
            (_, State::Gone) => self.lost += 1,
            _ => self.undone += 1,
        }
        let Fate {
            sure, open, run, ..
        } = fate;
        self.tell(format!(
            "{number}: {sure:?} or {open:?}, is {found:?} (run {run})"
        ));
    }
}

/// Which kept results are asked for one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Results {
    /// Those of this run of the writer.
    Recent,
    All,
}

/// What is there.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) live: HashMap<u64, State>,
    pub(crate) values: BTreeMap<u64, u64>,
}

impl Truth {
    /// Takes in what the writer told.
    pub(crate) fn take(&mut self, record: Record) {
        match record.phase {
            Phase::Begun => self.begin(record),
            Phase::Ended => {
                self.after_poison += u64::from(self.poisoned_now);
                self.after_room += u64::from(self.roomy);
                self.after_hit += u64::from(!self.hits.is_empty());
                self.end(record);
            }
            Phase::Refused => {
                self.refused += 1;
                self.refused_after_hit += u64::from(!self.hits.is_empty());
                self.forget(record);
            }
            Phase::Poisoned => {
                self.poisoned += 1;
                self.refused_after_hit += u64::from(!self.hits.is_empty());
                self.poisoned_now = true;
                if let Some(fate) = self.fates.get_mut(&record.number)
                    && let Some(open) = after(record.op)
                {
                    fate.unsure |= 1 << open as u8;
                }
            }
            Phase::Opened => {
                self.opened += 1;
                self.run = record.number;
                self.poisoned_now = false;
            }
            Phase::Shut => self.shut += 1,
            Phase::Misread => self.misread += 1,
            Phase::Over => self.over += 1,
            Phase::Roomy => self.roomy = true,
            Phase::Hit => self.hits.push(record.detail),
        }
    }

    fn begin(&mut self, record: Record) {
        let run = self.run;
        match after(record.op) {
            Some(state) => {
                let none = Fate {
                    sure: State::Gone,
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

    fn end(&mut self, record: Record) {
        self.acknowledged += 1;
        if let Some(history) = &mut self.history {
            history.push(record);
        }
        self.published += u64::from(record.op == Op::Publish);
        self.ended += u64::from(record.op == Op::Ack);
        match after(record.op) {
            Some(state) => {
                let fate = Fate {
                    sure: state,
                    open: None,
                    unsure: 0,
                    run: self.run,
                };
                self.fates.insert(record.number, fate);
            }
            None => {
                let worth = Worth {
                    sure: record.number,
                    open: None,
                };
                self.values.insert(u64::from(record.detail), worth);
            }
        }
    }

    fn forget(&mut self, record: Record) {
        match after(record.op) {
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

    /// All messages that were ever begun.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.fates.keys().copied()
    }

    /// Compares with what is there. What was not answered is as it was found from here on.
    pub(crate) async fn compare(
        &mut self,
        journal: &dyn Journal,
        results: Results,
    ) -> Result<Broken> {
        let mut broken = Broken::default();
        let found = look(journal, &mut broken).await?;
        for number in found.live.keys() {
            if !self.fates.contains_key(number) {
                broken.invented += 1;
                broken.tell(format!("nobody published {number}"));
            }
        }
        for (number, fate) in &mut self.fates {
            let recent = results == Results::All || fate.run == self.run || fate.open.is_some();
            let state = match found.live.get(number) {
                Some(state) => *state,
                None if !recent => continue,
                None => ended(journal, *number, &mut broken).await?,
            };
            broken.judge(*number, *fate, state);
            fate.sure = state;
            fate.open = None;
            fate.unsure = 0;
        }
        for (producer, worth) in &mut self.values {
            let nth = found.values.get(producer).copied().unwrap_or_default();
            if nth != worth.sure && Some(nth) != worth.open {
                broken.undone += 1;
                broken.tell(format!("value {producer}: {worth:?}, is {nth}"));
            }
            *worth = Worth {
                sure: nth,
                open: None,
            };
        }
        Ok(broken)
    }
}

/// What an operation makes of a message; none where it is about a value.
pub(crate) const fn after(op: Op) -> Option<State> {
    match op {
        Op::Publish | Op::Nak | Op::Revive => Some(State::Waiting),
        Op::Ack => Some(State::Done),
        Op::Bury => Some(State::Dead),
        Op::Remove | Op::Withdraw => Some(State::Gone),
        Op::Put | Op::None => None,
    }
}

/// Reads everything, and checks that each row says what its number says.
pub(crate) async fn look(journal: &dyn Journal, broken: &mut Broken) -> Result<Found> {
    let mut found = Found::default();
    let at = Clock::new().at();
    let mut filter = Filter {
        lanes: plan::PREFIX.to_owned(),
        limit: PAGE,
        ..Filter::default()
    };
    let mut waiting = 0;
    loop {
        let page = journal.inspect(filter.clone(), at).await?;
        let Some(last) = page.last() else { break };
        filter.after = Some(last.id);
        for entry in page {
            let Some(number) = right(&entry) else {
                broken.wrong += 1;
                broken.tell(format!("{} says something else", entry.dedupe));
                continue;
            };
            let state = match entry.standing {
                Standing::Waiting | Standing::Held => State::Waiting,
                Standing::Dead(_) => State::Dead,
                // What is damaged says nothing right, and was told above.
                Standing::Damaged => continue,
            };
            waiting += u64::from(state == State::Waiting);
            if found.live.insert(number, state).is_some() {
                broken.wrong += 1;
                broken.tell(format!("{number} is there twice"));
            }
        }
    }
    let counted: u64 = journal
        .lanes(plan::PREFIX, at)
        .await?
        .iter()
        .map(|lane| lane.waiting)
        .sum();
    if counted != waiting {
        broken.wrong += 1;
        broken.tell(format!("lanes count {counted}, {waiting} wait"));
    }
    for (key, value) in journal.list(plan::PREFIX, usize::MAX).await? {
        let producer = key
            .rsplit('/')
            .next()
            .and_then(|word| word.parse::<u64>().ok());
        let nth = value
            .bytes
            .first_chunk()
            .map(|chunk| u64::from_le_bytes(*chunk));
        match producer.zip(nth) {
            Some((producer, nth)) if plan::value(producer, nth) == value.bytes => {
                found.values.insert(producer, nth);
            }
            _ => {
                broken.wrong += 1;
                broken.tell(format!("the value of {key} says something else"));
            }
        }
    }
    Ok(found)
}

/// The number of an entry that says what it must.
fn right(entry: &Entry) -> Option<u64> {
    let number = plan::number_of(&entry.dedupe)?;
    let reason = match &entry.standing {
        Standing::Dead(reason) => *reason == plan::reason(number),
        Standing::Waiting | Standing::Held => true,
        Standing::Damaged => false,
    };
    let well = reason
        && entry.body == plan::body(number)
        && plan::lane(number).is_ok_and(|lane| lane == entry.lane)
        && entry.expires_unix_ms.is_none();
    well.then_some(number)
}

/// How a message stands that is not live.
pub(crate) async fn ended(
    journal: &dyn Journal,
    number: u64,
    broken: &mut Broken,
) -> Result<State> {
    let lane = plan::lane(number)?;
    let Some(done) = journal.result(&lane, &plan::dedupe(number)).await? else {
        return Ok(State::Gone);
    };
    if done.result != Some(plan::result(number)) {
        broken.wrong += 1;
        broken.tell(format!("the result of {number} says something else"));
    }
    Ok(State::Done)
}
