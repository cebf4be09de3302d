//! Selection of seeds, and the summary of their results.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use bowline_core::error::FailureClass;
use bowline_testkit::HistoryEvent;

use crate::calls::CallFate;
use crate::world_run::{WorldRun, run_world};

/// Maximum violations printed in full.
const TOLD_MAX: usize = 10;

/// Threads running worlds.
const THREADS: u64 = 2;

/// Seeds between progress messages.
const PROGRESS: u64 = 1_000;

/// Summary of many worlds.
#[derive(Debug, Default)]
pub(crate) struct SeedReport {
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
    /// Seeds with violated invariants.
    pub(crate) broken: Vec<String>,
}

/// Runs the seeds given by the environment, or the first `count`.
pub(crate) fn run_all(count: u64) -> SeedReport {
    if let Some(seed) = env_number("BOWLINE_SEED") {
        return run_verbose(seed);
    }
    let Some(range) = env_range() else {
        return run_range(&(0..count), THREADS);
    };
    let report = run_range(&range, 1);
    print_line(&format!("sim: {}", report.to_json()));
    report
}

/// Runs a seed and prints everything.
fn run_verbose(seed: u64) -> SeedReport {
    let mut report = SeedReport::default();
    let lived = run_seed(seed, &mut report);
    for spec in lived.iter().flat_map(|lived| &lived.specs) {
        print_line(spec);
    }
    for moment in lived.iter().flat_map(|lived| &lived.history) {
        print_line(&format!("{:>7} ms  {:?}", moment.at_ms, moment.event));
    }
    for made in lived.iter().flat_map(|lived| &lived.ends) {
        print_line(&format!("{made:?}"));
    }
    report
}

fn run_range(range: &Range<u64>, threads: u64) -> SeedReport {
    let parts = thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|nth| {
                scope.spawn(move || {
                    let mut report = SeedReport::default();
                    for seed in range.clone().filter(|seed| seed % threads == nth) {
                        run_seed(seed, &mut report);
                        if threads == 1 && report.seeds % PROGRESS == 0 {
                            let broken = report.broken.len();
                            print_line(&format!("sim: seed {seed}, {broken} broken"));
                        }
                    }
                    report
                })
            })
            .collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    });
    let parts: Vec<SeedReport> = parts;
    parts
        .into_iter()
        .fold(SeedReport::default(), SeedReport::merge)
}

/// Runs a world; violations are recorded with its seed.
fn run_seed(seed: u64, report: &mut SeedReport) -> Option<WorldRun> {
    report.seeds += 1;
    match catch_unwind(AssertUnwindSafe(|| run_world(seed))) {
        Ok(lived) => {
            report.add_world(&lived);
            if let Some(first) = lived.broken.first() {
                let more = lived.broken.len() - 1;
                report.record_violation(seed, &format!("{first} (and {more} more)"));
            }
            Some(lived)
        }
        Err(_) => {
            report.record_violation(seed, "the world panicked; the reason is above");
            None
        }
    }
}

impl SeedReport {
    fn record_violation(&mut self, seed: u64, what: &str) {
        let line = format!("BOWLINE_SEED={seed}: {what}");
        if self.broken.len() < TOLD_MAX {
            print_line(&format!("sim: broken {line}"));
        }
        self.broken.push(line);
    }

    fn add_world(&mut self, lived: &WorldRun) {
        self.ejections += lived.ejections;
        for made in &lived.ends {
            self.calls += 1;
            match &made.end {
                CallFate::Answered => self.answered += 1,
                CallFate::Failed(error) if error.failure_class() == FailureClass::Timeout => {
                    self.timeouts += 1
                }
                CallFate::Failed(_) | CallFate::Dropped => {}
            }
            let ran = |what: &&HistoryEvent| match what {
                HistoryEvent::Executed(deed) => deed.arguments == made.arguments,
                _ => false,
            };
            let runs = lived.history.iter().map(|moment| &moment.event).filter(ran);
            self.retries += u64::from(runs.count() > 1);
        }
        for moment in &lived.history {
            match &moment.event {
                HistoryEvent::Started(life) => {
                    self.starts += 1;
                    self.restarts += u64::from(life.generation > 1);
                }
                HistoryEvent::Executed(_) => self.executions += 1,
                HistoryEvent::FinishedLate(_) => self.late += 1,
                HistoryEvent::Called { circuit, .. } if circuit == "half_open" => self.probes += 1,
                _ => {}
            }
        }
    }

    fn merge(mut self, other: Self) -> Self {
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
fn env_range() -> Option<Range<u64>> {
    let (from, to) = (
        env_number("BOWLINE_SEEDS_FROM")?,
        env_number("BOWLINE_SEEDS_TO")?,
    );
    Some(from..to)
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds to run is no configuration"
)]
fn env_number(name: &str) -> Option<u64> {
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
fn print_line(line: &str) {
    eprintln!("{line}");
}
