//! Result of each call, compared with the servers' ledgers.

use std::{collections::BTreeMap, fmt};

/// Examples shown for each kind of violation.
const EXAMPLES_MAX: usize = 5;

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExecutorCallKind {
    /// Small read over HTTP.
    SmallRead,
    /// Large echo over HTTP.
    LargeRead,
    /// Write over HTTP.
    HttpWrite,
    /// Write to a stdio server that the executor started.
    StdioWrite,
}

impl ExecutorCallKind {
    pub(super) const ALL: [Self; 4] = [
        Self::SmallRead,
        Self::LargeRead,
        Self::HttpWrite,
        Self::StdioWrite,
    ];

    const fn description(self) -> &'static str {
        match self {
            Self::SmallRead => "reads over HTTP",
            Self::LargeRead => "large reads over HTTP",
            Self::HttpWrite => "writes over HTTP",
            Self::StdioWrite => "writes over stdio there",
        }
    }

    const fn is_write(self) -> bool {
        matches!(self, Self::HttpWrite | Self::StdioWrite)
    }
}

/// How a call ended for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExecutorCallEnd {
    /// The correct response arrived.
    Answered,
    /// Reported as not started.
    NotStarted,
    /// Reported as possibly executed.
    Unknown,
    /// Any other error.
    Failed,
    /// A response arrived, but not the correct one.
    Wrong,
    /// No response arrived.
    NoResponse,
}

/// A finished call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExecutorCallRecord {
    pub(super) number: u64,
    pub(super) kind: ExecutorCallKind,
    pub(super) end: ExecutorCallEnd,
    /// Error code of a failure, or the unexpected response.
    pub(super) reason: String,
    /// Duration in milliseconds.
    pub(super) took_ms: u64,
}

/// Counts and violations of a run.
#[derive(Debug, Default)]
pub(super) struct ExecutorTally {
    ends: BTreeMap<(ExecutorCallKind, ExecutorCallEnd), u64>,
    reasons: BTreeMap<(ExecutorCallKind, String), u64>,
    slowest: BTreeMap<ExecutorCallKind, u64>,
    /// Violations by kind, with examples; must stay empty.
    violations: BTreeMap<&'static str, Vec<String>>,
}

impl ExecutorTally {
    /// Adds a call; `times` is how often the ledger contains its number.
    pub(super) fn add_call(&mut self, ended: &ExecutorCallRecord, times: u64) {
        let kind = ended.kind;
        *self.ends.entry((kind, ended.end)).or_default() += 1;
        if ended.end != ExecutorCallEnd::Answered {
            *self
                .reasons
                .entry((kind, ended.reason.clone()))
                .or_default() += 1;
        }
        let slowest = self.slowest.entry(kind).or_default();
        *slowest = ended.took_ms.max(*slowest);
        let must_not = match ended.end {
            ExecutorCallEnd::Wrong => Some("crossed or cut short"),
            ExecutorCallEnd::NoResponse => Some("without an end"),
            ExecutorCallEnd::Failed => Some("failed otherwise"),
            // The gateway retries reads.
            ExecutorCallEnd::NotStarted | ExecutorCallEnd::Unknown if !kind.is_write() => {
                Some("read, and not recovered")
            }
            // Messages to a stdio server are delivered after the connection resumes.
            ExecutorCallEnd::NotStarted | ExecutorCallEnd::Unknown
                if kind == ExecutorCallKind::StdioWrite =>
            {
                Some("not carried on")
            }
            ExecutorCallEnd::NotStarted if times > 0 => Some("executed though refused"),
            ExecutorCallEnd::Answered if kind.is_write() && times == 0 => {
                Some("answered though not executed")
            }
            _ if times > 1 => Some("executed twice"),
            _ => None,
        };
        if let Some(what) = must_not {
            let example = format!("{} ({} ms: {})", ended.number, ended.took_ms, ended.reason);
            self.add_violation(what, example);
        }
    }

    pub(super) fn add_violation(&mut self, what: &'static str, example: String) {
        self.violations.entry(what).or_default().push(example);
    }

    pub(super) fn has_no_violations(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for ExecutorTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in ExecutorCallKind::ALL {
            let of = |end| self.ends.get(&(kind, end)).copied().unwrap_or(0);
            let all: u64 = self
                .ends
                .iter()
                .filter(|((k, _), _)| *k == kind)
                .map(|(_, n)| n)
                .sum();
            writeln!(
                f,
                "  {}: {all} calls, answered {}, not started {}, unknown {}; slowest {} ms",
                kind.description(),
                of(ExecutorCallEnd::Answered),
                of(ExecutorCallEnd::NotStarted),
                of(ExecutorCallEnd::Unknown),
                self.slowest.get(&kind).copied().unwrap_or(0),
            )?;
        }
        for ((kind, why), count) in &self.reasons {
            writeln!(f, "  {}: {why}: {count}", kind.description())?;
        }
        for (what, examples) in &self.violations {
            let shown: Vec<_> = examples
                .iter()
                .take(EXAMPLES_MAX)
                .map(String::as_str)
                .collect();
            writeln!(f, "  {what}: {}: {}", examples.len(), shown.join("; "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn violations_are_found() {
        use ExecutorCallEnd::{Answered, Failed, NoResponse, NotStarted, Unknown, Wrong};
        use ExecutorCallKind::{HttpWrite, LargeRead, SmallRead, StdioWrite};
        for (kind, end, times, well) in [
            (SmallRead, Answered, 0, true),
            (SmallRead, Unknown, 0, false),
            (SmallRead, NotStarted, 0, false),
            (LargeRead, Wrong, 0, false),
            (LargeRead, Failed, 0, false),
            (HttpWrite, Answered, 1, true),
            (HttpWrite, Answered, 0, false),
            (HttpWrite, Answered, 2, false),
            (HttpWrite, Unknown, 0, true),
            (HttpWrite, Unknown, 1, true),
            (HttpWrite, Unknown, 2, false),
            (HttpWrite, NotStarted, 0, true),
            (HttpWrite, NotStarted, 1, false),
            (HttpWrite, NoResponse, 0, false),
            (StdioWrite, Answered, 1, true),
            (StdioWrite, Unknown, 1, false),
        ] {
            let mut tally = ExecutorTally::default();
            let why = String::new();
            let ended = ExecutorCallRecord {
                number: 1,
                kind,
                end,
                reason: why,
                took_ms: 1,
            };
            tally.add_call(&ended, times);
            assert_eq!(
                tally.has_no_violations(),
                well,
                "{kind:?} {end:?} {times}\n{tally}"
            );
        }
    }
}
