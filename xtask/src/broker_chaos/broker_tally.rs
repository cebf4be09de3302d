//! Result of each numbered call, compared with the servers' ledgers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Examples shown for each kind of violation.
const EXAMPLES_MAX: usize = 5;

/// How a call ended for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BrokerCallEnd {
    /// The call's response arrived.
    Answered,
    /// The response of another call arrived.
    WrongResponse,
    /// The tool ran and returned an error.
    Failed,
    /// The call did not run.
    NotStarted,
    /// Reported as possibly executed.
    Unknown,
    /// The caller's gateway was killed, and the response was lost.
    GatewayGone,
    /// A receipt arrived, but no reply.
    NoReply,
}

impl BrokerCallEnd {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Answered, "answered"),
        (Self::WrongResponse, "crossed"),
        (Self::Failed, "failed"),
        (Self::NotStarted, "refused"),
        (Self::Unknown, "unknown"),
        (Self::GatewayGone, "gone"),
        (Self::NoReply, "silent"),
    ];

    fn as_str(self) -> &'static str {
        let word = Self::ALL.iter().find(|(end, _)| *end == self);
        word.map_or("?", |(_, word)| *word)
    }

    /// Returns the minimum and maximum number of executions of a write with this end.
    const fn execution_range(self) -> (u64, u64) {
        match self {
            Self::Answered => (1, 1),
            Self::NotStarted | Self::Failed => (0, 0),
            Self::Unknown | Self::GatewayGone | Self::NoReply | Self::WrongResponse => (0, 1),
        }
    }
}

/// Record of a finished call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokerCallRecord {
    pub(super) number: u64,
    pub(super) end: BrokerCallEnd,
    /// Code of the last rejection or failure; of the last failed attempt if a response arrived.
    pub(super) code: String,
    /// Retries and redeliveries before the end.
    pub(super) retries: u64,
    /// Whether the tool writes to the ledger.
    pub(super) is_write: bool,
    /// Whether the caller received a receipt for the stored call.
    pub(super) has_receipt: bool,
    /// Duration in milliseconds.
    pub(super) took_ms: u64,
}

impl BrokerCallRecord {
    pub(super) fn to_line(&self) -> String {
        json!([
            self.number,
            self.end.as_str(),
            self.code,
            self.retries,
            self.is_write,
            self.has_receipt,
            self.took_ms
        ])
        .to_string()
    }

    pub(super) fn parse_line(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let at = |nth: usize| value.get(nth);
        let whole = |nth| at(nth).and_then(Value::as_u64);
        let word = |nth| at(nth).and_then(Value::as_str);
        let read = || {
            let end = BrokerCallEnd::ALL
                .iter()
                .find(|(_, name)| Some(*name) == word(1))?
                .0;
            Some(Self {
                number: whole(0)?,
                end,
                code: word(2)?.to_owned(),
                retries: whole(3)?,
                is_write: at(4)?.as_bool()?,
                has_receipt: at(5)?.as_bool()?,
                took_ms: whole(6)?,
            })
        };
        read().with_context(|| format!("no end of a call: {line}"))
    }
}

/// Origin of a group of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CallerGroup {
    /// Agents at the worker, calling the hub's server.
    Worker,
    /// Agents at the hub, calling the worker's server.
    Hub,
    /// Plain peers, calling the hub's server.
    Peers,
}

impl CallerGroup {
    const fn description(self) -> &'static str {
        match self {
            Self::Worker => "worker -> hub",
            Self::Hub => "hub -> worker",
            Self::Peers => "plain peers -> hub",
        }
    }
}

/// Counts of one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GroupCounts {
    calls: u64,
    writes: u64,
    ends: BTreeMap<BrokerCallEnd, u64>,
    expired: u64,
    retries: u64,
    receipts: u64,
    executed: u64,
    slowest_ms: u64,
    /// Codes of calls without a response, and of retried calls with a response.
    codes: BTreeMap<(bool, String), u64>,
    /// Violations by kind, with examples; must stay empty.
    violations: BTreeMap<&'static str, Vec<String>>,
}

/// All kinds of violations, in display order.
const VIOLATIONS: [&str; 6] = [
    "lost after receipt",
    "executed twice",
    "crossed",
    "executed though refused",
    "answered though not executed",
    "without an end",
];

#[derive(Debug, Default)]
pub(super) struct BrokerTally {
    counts: BTreeMap<CallerGroup, GroupCounts>,
}

impl BrokerTally {
    /// Adds the calls of one group: expected numbers, records, and executions by number.
    pub(super) fn add_group(
        &mut self,
        who: CallerGroup,
        wanted: impl Iterator<Item = u64>,
        ended: &[BrokerCallRecord],
        executed: &BTreeMap<u64, u64>,
    ) {
        let count = self.counts.entry(who).or_default();
        let mut open: BTreeSet<u64> = wanted.collect();
        for ended in ended {
            let number = ended.number;
            if !open.remove(&number) {
                count.add_violation("crossed", format!("{number} ended twice"));
            }
            count.add_call(ended, executed.get(&number).copied().unwrap_or(0));
        }
        for number in open {
            count.calls += 1;
            count.add_violation("without an end", number.to_string());
        }
    }

    pub(super) fn has_no_violations(&self) -> bool {
        self.counts
            .values()
            .all(|count| count.violations.is_empty())
    }
}

impl GroupCounts {
    fn add_call(&mut self, ended: &BrokerCallRecord, times: u64) {
        self.calls += 1;
        *self.ends.entry(ended.end).or_default() += 1;
        self.retries += ended.retries;
        self.slowest_ms = self.slowest_ms.max(ended.took_ms);
        self.receipts += u64::from(ended.has_receipt);
        if !ended.code.is_empty() {
            let key = (ended.end == BrokerCallEnd::Answered, ended.code.clone());
            *self.codes.entry(key).or_default() += 1;
        }
        self.expired += u64::from(ended.code == "expired");
        let example = format!("{} ({} {})", ended.number, ended.end.as_str(), ended.code);
        if ended.end == BrokerCallEnd::WrongResponse {
            self.add_violation("crossed", example.clone());
        }
        if ended.end == BrokerCallEnd::NoReply {
            self.add_violation("lost after receipt", example.clone());
        }
        if !ended.is_write {
            return;
        }
        self.writes += 1;
        self.executed += times;
        let (least, most) = ended.end.execution_range();
        if times > 1 {
            self.add_violation("executed twice", example);
        } else if times > most {
            self.add_violation("executed though refused", example);
        } else if times < least {
            self.add_violation("answered though not executed", example);
        }
    }

    fn add_violation(&mut self, what: &'static str, example: String) {
        self.violations.entry(what).or_default().push(example);
    }
}

impl fmt::Display for BrokerTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (who, count) in &self.counts {
            write!(f, "{}: {} calls", who.description(), count.calls)?;
            write!(f, ", {} of them writes", count.writes)?;
            if *who == CallerGroup::Peers {
                write!(f, ", {} receipts", count.receipts)?;
            }
            for (end, number) in &count.ends {
                write!(f, ", {number} {}", end.as_str())?;
            }
            write!(f, ", {} expired", count.expired)?;
            write!(f, "; {} executions", count.executed)?;
            write!(f, "; asked again {} times", count.retries)?;
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
        for what in VIOLATIONS {
            let all = self
                .counts
                .values()
                .filter_map(|count| count.violations.get(what));
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

/// Counts the executions of each number in a ledger.
pub(crate) fn count_executions(ledger: &str) -> BTreeMap<u64, u64> {
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

    fn record(number: u64, end: BrokerCallEnd) -> BrokerCallRecord {
        BrokerCallRecord {
            number,
            end,
            code: String::new(),
            retries: 0,
            is_write: true,
            has_receipt: true,
            took_ms: 1,
        }
    }

    fn first_violation(end: BrokerCallEnd, times: u64) -> Option<&'static str> {
        let mut tally = BrokerTally::default();
        let executed = BTreeMap::from([(7, times)]);
        tally.add_group(CallerGroup::Hub, 7..8, &[record(7, end)], &executed);
        let count = tally.counts.get(&CallerGroup::Hub).unwrap();
        count.violations.keys().next().copied()
    }

    #[test]
    fn each_end_allows_fixed_execution_count() {
        for (end, times, wrong) in [
            (BrokerCallEnd::Answered, 1, None),
            (
                BrokerCallEnd::Answered,
                0,
                Some("answered though not executed"),
            ),
            (BrokerCallEnd::Answered, 2, Some("executed twice")),
            (BrokerCallEnd::NotStarted, 0, None),
            (
                BrokerCallEnd::NotStarted,
                1,
                Some("executed though refused"),
            ),
            (BrokerCallEnd::Unknown, 1, None),
            (BrokerCallEnd::GatewayGone, 0, None),
            (BrokerCallEnd::GatewayGone, 2, Some("executed twice")),
            (BrokerCallEnd::NoReply, 1, Some("lost after receipt")),
            (BrokerCallEnd::WrongResponse, 1, Some("crossed")),
        ] {
            assert_eq!(first_violation(end, times), wrong, "{end:?} {times}");
        }
    }

    #[test]
    fn missing_and_duplicate_ends_are_violations() {
        let mut tally = BrokerTally::default();
        let twice = [
            record(1, BrokerCallEnd::Unknown),
            record(1, BrokerCallEnd::Unknown),
        ];
        tally.add_group(CallerGroup::Peers, 1..3, &twice, &BTreeMap::new());
        assert!(!tally.has_no_violations());
        let said = tally.to_string();
        assert!(said.contains("without an end: 1  MUST BE 0"), "{said}");
        assert!(said.contains("crossed: 1  MUST BE 0"), "{said}");
        assert!(said.contains("executed twice: 0\n"), "{said}");
    }

    #[test]
    fn record_survives_line_round_trip() {
        let said = record(9, BrokerCallEnd::GatewayGone);
        assert_eq!(BrokerCallRecord::parse_line(&said.to_line()).unwrap(), said);
        assert!(BrokerCallRecord::parse_line("[1]").is_err());
    }

    #[test]
    fn executions_are_counted_per_number() {
        let executed = count_executions("write\t1\ta\neffect\nwrite\t2\t\nwrite\t1\t\n");
        assert_eq!(executed, BTreeMap::from([(1, 2), (2, 1)]));
    }
}
