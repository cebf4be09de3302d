//! Which seeds are run, and the sum of what came of them.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use bowline_core::error::Class;
use bowline_sim::Happened;

use crate::calls::End;
use crate::life::{Lived, run};

/// Broken laws that are told in full.
const TOLD_MAX: usize = 10;

/// Threads that run worlds.
const THREADS: u64 = 2;

/// How many seeds pass between two words of progress.
const PROGRESS: u64 = 1_000;

/// What came of many worlds.
#[derive(Debug, Default)]
pub(crate) struct Report {
    seeds: u64,
    calls: u64,
    answered: u64,
    executions: u64,
    starts: u64,
    restarts: u64,
    ejections: u64,
    retries: u64,
    timeouts: u64,
    late: u64,
    probes: u64,
    /// Seeds under which a law was broken.
    pub(crate) broken: Vec<String>,
}

/// Runs the seeds that the environment names, or the first `count`.
pub(crate) fn run_all(count: u64) -> Report {
    if let Some(seed) = word("BOWLINE_SEED") {
        return show(seed);
    }
    let Some(range) = range() else {
        return run_range(&(0..count), THREADS);
    };
    let report = run_range(&range, 1);
    tell(&format!("sim: {}", report.to_json()));
    report
}

/// Runs one seed and tells everything.
fn show(seed: u64) -> Report {
    let mut report = Report::default();
    let lived = one(seed, &mut report);
    for spec in lived.iter().flat_map(|lived| &lived.specs) {
        tell(spec);
    }
    for moment in lived.iter().flat_map(|lived| &lived.history) {
        tell(&format!("{:>7} ms  {:?}", moment.at_ms, moment.what));
    }
    for made in lived.iter().flat_map(|lived| &lived.ends) {
        tell(&format!("{made:?}"));
    }
    report
}

fn run_range(range: &Range<u64>, threads: u64) -> Report {
    let parts = thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|nth| {
                scope.spawn(move || {
                    let mut report = Report::default();
                    for seed in range.clone().filter(|seed| seed % threads == nth) {
                        one(seed, &mut report);
                        if threads == 1 && report.seeds % PROGRESS == 0 {
                            let broken = report.broken.len();
                            tell(&format!("sim: seed {seed}, {broken} broken"));
                        }
                    }
                    report
                })
            })
            .collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    let parts: Vec<Report> = parts;
    parts.into_iter().fold(Report::default(), Report::plus)
}

/// Lives one world; what it breaks is kept with its seed.
fn one(seed: u64, report: &mut Report) -> Option<Lived> {
    report.seeds += 1;
    match catch_unwind(AssertUnwindSafe(|| run(seed))) {
        Ok(lived) => {
            report.add(&lived);
            if let Some(first) = lived.broken.first() {
                let more = lived.broken.len() - 1;
                report.note(seed, &format!("{first} (and {more} more)"));
            }
            Some(lived)
        }
        Err(_) => {
            report.note(seed, "the world panicked; the reason is above");
            None
        }
    }
}

impl Report {
    fn note(&mut self, seed: u64, what: &str) {
        let line = format!("BOWLINE_SEED={seed}: {what}");
        if self.broken.len() < TOLD_MAX {
            tell(&format!("sim: broken {line}"));
        }
        self.broken.push(line);
    }

    fn add(&mut self, lived: &Lived) {
        self.ejections += lived.ejections;
        for made in &lived.ends {
            self.calls += 1;
            match &made.end {
                End::Answered => self.answered += 1,
                End::Failed(error) if error.class() == Class::Timeout => self.timeouts += 1,
                End::Failed(_) | End::Dropped => {}
            }
            let ran = |what: &&Happened| match what {
                Happened::Executed(deed) => deed.arguments == made.arguments,
                _ => false,
            };
            let runs = lived.history.iter().map(|moment| &moment.what).filter(ran);
            self.retries += u64::from(runs.count() > 1);
        }
        for moment in &lived.history {
            match &moment.what {
                Happened::Started(life) => {
                    self.starts += 1;
                    self.restarts += u64::from(life.generation > 1);
                }
                Happened::Executed(_) => self.executions += 1,
                Happened::Late(_) => self.late += 1,
                Happened::Called {
                    circuit: "half_open",
                    ..
                } => self.probes += 1,
                _ => {}
            }
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.seeds += other.seeds;
        self.calls += other.calls;
        self.answered += other.answered;
        self.executions += other.executions;
        self.starts += other.starts;
        self.restarts += other.restarts;
        self.ejections += other.ejections;
        self.retries += other.retries;
        self.timeouts += other.timeouts;
        self.late += other.late;
        self.probes += other.probes;
        self.broken.extend(other.broken);
        self
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "seeds": self.seeds,
            "calls": self.calls,
            "answered": self.answered,
            "executions": self.executions,
            "starts": self.starts,
            "restarts": self.restarts,
            "ejections": self.ejections,
            "retries": self.retries,
            "timeouts": self.timeouts,
            "late": self.late,
            "probes": self.probes,
            "broken": self.broken.len(),
        })
    }
}

/// The seeds `FROM..TO` of `BOWLINE_SEEDS`.
fn range() -> Option<Range<u64>> {
    let (from, to) = (word("BOWLINE_SEEDS_FROM")?, word("BOWLINE_SEEDS_TO")?);
    Some(from..to)
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds to run is no configuration"
)]
fn word(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

#[expect(
    clippy::print_stderr,
    reason = "who sees the failure must be able to replay it"
)]
fn tell(line: &str) {
    eprintln!("{line}");
}
