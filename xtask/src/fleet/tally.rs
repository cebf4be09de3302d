//! What became of each numbered call, held against what the ledgers of the servers show.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Examples that a tally names of each thing that must not be.
const EXAMPLES_MAX: usize = 5;

/// What a caller knows of one call in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Its own answer came.
    Answered,
    /// The answer of another call came.
    Crossed,
    /// The tool ran, and said that it failed.
    Failed,
    /// It did not run.
    NotStarted,
    /// It may have run: it was told so.
    Unknown,
    /// The gateway it was asked at went away, and the answer with it.
    Gone,
    /// A receipt came, and then nothing any more.
    Silent,
}

impl End {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Answered, "answered"),
        (Self::Crossed, "crossed"),
        (Self::Failed, "failed"),
        (Self::NotStarted, "refused"),
        (Self::Unknown, "unknown"),
        (Self::Gone, "gone"),
        (Self::Silent, "silent"),
    ];

    fn word(self) -> &'static str {
        let word = Self::ALL.iter().find(|(end, _)| *end == self);
        word.map_or("?", |(_, word)| *word)
    }

    /// How often a write may have run.
    const fn may_have_run(self) -> (u64, u64) {
        match self {
            Self::Answered => (1, 1),
            Self::NotStarted | Self::Failed => (0, 0),
            Self::Unknown | Self::Gone | Self::Silent | Self::Crossed => (0, 1),
        }
    }
}

/// One call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) number: u64,
    pub(super) end: End,
    /// The code word of the last refusal or failure; that before the answer where one came.
    pub(super) code: String,
    /// How often it was refused, or had to be asked again, before.
    pub(super) refused: u64,
    /// Whether its tool writes to the ledger.
    pub(super) writes: bool,
    /// Whether it was stored, and its caller told so.
    pub(super) receipt: bool,
    /// In milliseconds.
    pub(super) took: u64,
}

impl Ended {
    pub(super) fn line(&self) -> String {
        json!([
            self.number,
            self.end.word(),
            self.code,
            self.refused,
            self.writes,
            self.receipt,
            self.took
        ])
        .to_string()
    }

    pub(super) fn read(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let at = |nth: usize| value.get(nth);
        let whole = |nth| at(nth).and_then(Value::as_u64);
        let word = |nth| at(nth).and_then(Value::as_str);
        let read = || {
            let end = End::ALL.iter().find(|(_, name)| Some(*name) == word(1))?.0;
            Some(Self {
                number: whole(0)?,
                end,
                code: word(2)?.to_owned(),
                refused: whole(3)?,
                writes: at(4)?.as_bool()?,
                receipt: at(5)?.as_bool()?,
                took: whole(6)?,
            })
        };
        read().with_context(|| format!("no end of a call: {line}"))
    }
}

/// Whose calls they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// Agents of the worker, to the hub's server.
    Worker,
    /// Agents of the hub, to the worker's server.
    Hub,
    /// Peers that know the first frames only, to the hub's server.
    Peers,
}

impl Who {
    const fn says(self) -> &'static str {
        match self {
            Self::Worker => "worker -> hub",
            Self::Hub => "hub -> worker",
            Self::Peers => "plain peers -> hub",
        }
    }
}

/// What is counted of the calls of one kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    calls: u64,
    writes: u64,
    ends: BTreeMap<End, u64>,
    expired: u64,
    refusals: u64,
    receipts: u64,
    executed: u64,
    slowest_ms: u64,
    /// Why calls were not answered, and why they had to be asked again.
    codes: BTreeMap<(bool, String), u64>,
    /// Each must stay empty: what, and examples.
    wrong: BTreeMap<&'static str, Vec<String>>,
}

/// Everything that must never be, in the order in which it is shown.
const NEVER: [&str; 6] = [
    "lost after receipt",
    "executed twice",
    "crossed",
    "executed though refused",
    "answered though not executed",
    "without an end",
];

#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: BTreeMap<Who, Count>,
}

impl Tally {
    /// Adds the calls of one kind: what was wanted, what became of it, how often each number ran.
    pub(super) fn add(
        &mut self,
        who: Who,
        wanted: impl Iterator<Item = u64>,
        ended: &[Ended],
        executed: &BTreeMap<u64, u64>,
    ) {
        let count = self.counts.entry(who).or_default();
        let mut open: BTreeSet<u64> = wanted.collect();
        for ended in ended {
            let number = ended.number;
            if !open.remove(&number) {
                count.blame("crossed", format!("{number} ended twice"));
            }
            count.add(ended, executed.get(&number).copied().unwrap_or(0));
        }
        for number in open {
            count.calls += 1;
            count.blame("without an end", number.to_string());
        }
    }

    pub(super) fn is_well(&self) -> bool {
        self.counts.values().all(|count| count.wrong.is_empty())
    }
}

impl Count {
    fn add(&mut self, ended: &Ended, times: u64) {
        self.calls += 1;
        *self.ends.entry(ended.end).or_default() += 1;
        self.refusals += ended.refused;
        self.slowest_ms = self.slowest_ms.max(ended.took);
        self.receipts += u64::from(ended.receipt);
        if !ended.code.is_empty() {
            let key = (ended.end == End::Answered, ended.code.clone());
            *self.codes.entry(key).or_default() += 1;
        }
        self.expired += u64::from(ended.code == "expired");
        let said = format!("{} ({} {})", ended.number, ended.end.word(), ended.code);
        if ended.end == End::Crossed {
            self.blame("crossed", said.clone());
        }
        if ended.end == End::Silent {
            self.blame("lost after receipt", said.clone());
        }
        if !ended.writes {
            return;
        }
        self.writes += 1;
        self.executed += times;
        let (least, most) = ended.end.may_have_run();
        if times > 1 {
            self.blame("executed twice", said);
        } else if times > most {
            self.blame("executed though refused", said);
        } else if times < least {
            self.blame("answered though not executed", said);
        }
    }

    fn blame(&mut self, what: &'static str, example: String) {
        self.wrong.entry(what).or_default().push(example);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (who, count) in &self.counts {
            write!(f, "{}: {} calls", who.says(), count.calls)?;
            write!(f, ", {} of them writes", count.writes)?;
            if *who == Who::Peers {
                write!(f, ", {} receipts", count.receipts)?;
            }
            for (end, number) in &count.ends {
                write!(f, ", {number} {}", end.word())?;
            }
            write!(f, ", {} expired", count.expired)?;
            write!(f, "; {} executions", count.executed)?;
            write!(f, "; asked again {} times", count.refusals)?;
            writeln!(f, "; slowest {} ms", count.slowest_ms)?;
            for (answered, says) in [(false, "not answered"), (true, "answered in the end")] {
                let codes = count.codes.iter().filter(|((one, _), _)| *one == answered);
                let codes: Vec<String> = codes
                    .map(|((_, code), number)| format!("{code} {number}"))
                    .collect();
                if !codes.is_empty() {
                    writeln!(f, "  {says}: {}", codes.join(", "))?;
                }
            }
        }
        for what in NEVER {
            let all = self
                .counts
                .values()
                .filter_map(|count| count.wrong.get(what));
            let all: Vec<&String> = all.flatten().collect();
            let verdict = if all.is_empty() { "" } else { "  MUST BE 0" };
            writeln!(f, "{what}: {}{verdict}", all.len())?;
            for example in all.iter().take(EXAMPLES_MAX) {
                writeln!(f, "  {example}")?;
            }
        }
        Ok(())
    }
}

/// How often each number was written, by a ledger.
pub(crate) fn executions(ledger: &str) -> BTreeMap<u64, u64> {
    let mut executed = BTreeMap::new();
    for line in ledger.lines() {
        let mut parts = line.split('\t');
        let number = parts.next().filter(|word| *word == "write");
        let number = number.and_then(|_| parts.next()?.parse().ok());
        if let Some(number) = number {
            *executed.entry(number).or_default() += 1;
        }
    }
    executed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: u64, end: End) -> Ended {
        Ended {
            number,
            end,
            code: String::new(),
            refused: 0,
            writes: true,
            receipt: true,
            took: 1,
        }
    }

    fn of(end: End, times: u64) -> Option<&'static str> {
        let mut tally = Tally::default();
        let executed = BTreeMap::from([(7, times)]);
        tally.add(Who::Hub, 7..8, &[ended(7, end)], &executed);
        let count = tally.counts.get(&Who::Hub).unwrap();
        count.wrong.keys().next().copied()
    }

    #[test]
    fn each_end_allows_so_many_executions_and_no_other() {
        for (end, times, wrong) in [
            (End::Answered, 1, None),
            (End::Answered, 0, Some("answered though not executed")),
            (End::Answered, 2, Some("executed twice")),
            (End::NotStarted, 0, None),
            (End::NotStarted, 1, Some("executed though refused")),
            (End::Unknown, 1, None),
            (End::Gone, 0, None),
            (End::Gone, 2, Some("executed twice")),
            (End::Silent, 1, Some("lost after receipt")),
            (End::Crossed, 1, Some("crossed")),
        ] {
            assert_eq!(of(end, times), wrong, "{end:?} {times}");
        }
    }

    #[test]
    fn a_call_that_never_ended_and_one_that_ended_twice_are_found() {
        let mut tally = Tally::default();
        let twice = [ended(1, End::Unknown), ended(1, End::Unknown)];
        tally.add(Who::Peers, 1..3, &twice, &BTreeMap::new());
        assert!(!tally.is_well());
        let said = tally.to_string();
        assert!(said.contains("without an end: 1  MUST BE 0"), "{said}");
        assert!(said.contains("crossed: 1  MUST BE 0"), "{said}");
        assert!(said.contains("executed twice: 0\n"), "{said}");
    }

    #[test]
    fn what_an_agent_says_is_read_as_it_was_said() {
        let said = ended(9, End::Gone);
        assert_eq!(Ended::read(&said.line()).unwrap(), said);
        assert!(Ended::read("[1]").is_err());
    }

    #[test]
    fn a_ledger_counts_each_number() {
        let executed = executions("write\t1\ta\neffect\nwrite\t2\t\nwrite\t1\t\n");
        assert_eq!(executed, BTreeMap::from([(1, 2), (2, 1)]));
    }
}
