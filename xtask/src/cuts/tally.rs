//! What became of each call, held against what the servers wrote down.

use std::{collections::BTreeMap, fmt};

/// Examples that are named of each thing that must not be.
const EXAMPLES_MAX: usize = 5;

/// What kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Reads a little, over HTTP.
    Read,
    /// Sends a lot there and reads it back, over HTTP.
    Large,
    /// Writes, over HTTP.
    Write,
    /// Writes, by a server that the executor started.
    Pipe,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Read, Self::Large, Self::Write, Self::Pipe];

    const fn says(self) -> &'static str {
        match self {
            Self::Read => "reads over HTTP",
            Self::Large => "large reads over HTTP",
            Self::Write => "writes over HTTP",
            Self::Pipe => "writes over stdio there",
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Pipe)
    }
}

/// What a caller knows in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// The right answer came.
    Answered,
    /// It did not run, and was told so.
    NotStarted,
    /// It may have run, and was told so.
    Unknown,
    /// Something else was said.
    Failed,
    /// An answer came that is not the right one.
    Wrong,
    /// Nothing came.
    Gone,
}

/// One call that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) end: End,
    /// The code word of a failure, or what came.
    pub(super) why: String,
    /// In milliseconds.
    pub(super) took: u64,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    ends: BTreeMap<(Kind, End), u64>,
    why: BTreeMap<(Kind, String), u64>,
    slowest: BTreeMap<Kind, u64>,
    /// Each must stay empty: what, and examples.
    wrong: BTreeMap<&'static str, Vec<String>>,
}

impl Tally {
    /// Adds a call, and how often the ledger has its number.
    pub(super) fn add(&mut self, ended: &Ended, times: u64) {
        let kind = ended.kind;
        *self.ends.entry((kind, ended.end)).or_default() += 1;
        if ended.end != End::Answered {
            *self.why.entry((kind, ended.why.clone())).or_default() += 1;
        }
        let slowest = self.slowest.entry(kind).or_default();
        *slowest = ended.took.max(*slowest);
        let must_not = match ended.end {
            End::Wrong => Some("crossed or cut short"),
            End::Gone => Some("without an end"),
            End::Failed => Some("failed otherwise"),
            // What only reads is asked again by the gateway.
            End::NotStarted | End::Unknown if !kind.writes() => Some("read, and not recovered"),
            // What a server that runs there was told, it was told once the connection is back.
            End::NotStarted | End::Unknown if kind == Kind::Pipe => Some("not carried on"),
            End::NotStarted if times > 0 => Some("executed though refused"),
            End::Answered if kind.writes() && times == 0 => Some("answered though not executed"),
            _ if times > 1 => Some("executed twice"),
            _ => None,
        };
        if let Some(what) = must_not {
            let example = format!("{} ({} ms: {})", ended.number, ended.took, ended.why);
            self.blame(what, example);
        }
    }

    pub(super) fn blame(&mut self, what: &'static str, example: String) {
        self.wrong.entry(what).or_default().push(example);
    }

    pub(super) fn is_well(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for kind in Kind::ALL {
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
                kind.says(),
                of(End::Answered),
                of(End::NotStarted),
                of(End::Unknown),
                self.slowest.get(&kind).copied().unwrap_or(0),
            )?;
        }
        for ((kind, why), count) in &self.why {
            writeln!(f, "  {}: {why}: {count}", kind.says())?;
        }
        for (what, examples) in &self.wrong {
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
    fn what_must_not_be_is_found() {
        use End::{Answered, Failed, Gone, NotStarted, Unknown, Wrong};
        use Kind::{Large, Pipe, Read, Write};
        for (kind, end, times, well) in [
            (Read, Answered, 0, true),
            (Read, Unknown, 0, false),
            (Read, NotStarted, 0, false),
            (Large, Wrong, 0, false),
            (Large, Failed, 0, false),
            (Write, Answered, 1, true),
            (Write, Answered, 0, false),
            (Write, Answered, 2, false),
            (Write, Unknown, 0, true),
            (Write, Unknown, 1, true),
            (Write, Unknown, 2, false),
            (Write, NotStarted, 0, true),
            (Write, NotStarted, 1, false),
            (Write, Gone, 0, false),
            (Pipe, Answered, 1, true),
            (Pipe, Unknown, 1, false),
        ] {
            let mut tally = Tally::default();
            let why = String::new();
            let ended = Ended {
                number: 1,
                kind,
                end,
                why,
                took: 1,
            };
            tally.add(&ended, times);
            assert_eq!(tally.is_well(), well, "{kind:?} {end:?} {times}\n{tally}");
        }
    }
}
