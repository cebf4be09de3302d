//! What a run showed, held against its goals.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::gateway::{Cpu, Vitals};
use super::load::Outcome;

/// Processor time of healthy servers per call, disturbed to undisturbed.
const CPU_RATIO_MAX: f64 = 1.10;

/// 99th percentile, disturbed to undisturbed.
const P99_RATIO_MAX: f64 = 2.0;

/// Growth of the gateway's memory from the middle to the end that is no growth.
const RSS_KIB_SLACK: u64 = 2_048;

/// One kind of run, its halves together.
#[derive(Debug, Default)]
struct Side {
    outcome: Outcome,
    cpu: Cpu,
}

/// Writes one figure of a side.
type Figure<'a> = &'a dyn Fn(&Side) -> String;

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Report {
    calm: Side,
    stormy: Side,
    pub(super) before: Vitals,
    pub(super) middle: Vitals,
    pub(super) after: Vitals,
    left_out: Vec<String>,
}

impl Side {
    fn calls(&self) -> u64 {
        self.outcome.latencies_us.len() as u64 + self.outcome.errors
    }

    fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.outcome.latencies_us.clone();
        sorted.sort_unstable();
        let at = sorted.len().saturating_sub(1) * percent / 100;
        sorted.get(at).copied().unwrap_or(0)
    }

    fn all_calls(&self) -> u64 {
        self.calls() + self.outcome.faulty.values().sum::<u64>()
    }

    fn healthy_us(&self) -> f64 {
        self.cpu.healthy_us as f64 / self.calls().max(1) as f64
    }

    fn gateway_us(&self) -> f64 {
        self.cpu.gateway_us as f64 / self.all_calls().max(1) as f64
    }

    fn to_json(&self) -> Value {
        json!({
            "healthy_calls": self.calls(),
            "healthy_errors": self.outcome.errors,
            "healthy_wrong": self.outcome.wrong,
            "healthy_cpu_us_per_call": self.healthy_us(),
            "gateway_cpu_us_per_call": self.gateway_us(),
            "p50_us": self.percentile(50),
            "p99_us": self.percentile(99),
            "max_us": self.percentile(100),
            "late": self.outcome.late,
            "kills": self.outcome.kills,
            "faulty": self.outcome.faulty,
        })
    }
}

impl Report {
    pub(super) fn leave_out(&mut self, what: &str) {
        self.left_out.push(what.to_owned());
    }

    pub(super) fn add(&mut self, disturbed: bool, outcome: Outcome, cpu: &Cpu) {
        let side = if disturbed {
            &mut self.stormy
        } else {
            &mut self.calm
        };
        side.outcome.plus(outcome);
        side.cpu.gateway_us += cpu.gateway_us;
        side.cpu.healthy_us += cpu.healthy_us;
    }

    fn cpu_ratio(&self) -> f64 {
        self.stormy.healthy_us() / self.calm.healthy_us().max(1.0)
    }

    fn p99_ratio(&self) -> f64 {
        self.stormy.percentile(99) as f64 / self.calm.percentile(99).max(1) as f64
    }

    /// Goals that were missed, in words.
    pub(crate) fn missed(&self) -> Vec<String> {
        let errors = self.calm.outcome.errors + self.stormy.outcome.errors;
        let silent = self.stormy.outcome.faulty.keys();
        let silent = silent.filter(|end| end.contains("no answer")).count();
        let (before, middle, after) = (&self.before, &self.middle, &self.after);
        let flat = after.rss_kib <= middle.rss_kib + middle.rss_kib / 10 + RSS_KIB_SLACK;
        let goals = [
            (errors == 0, "errors on healthy servers"),
            (self.stormy.outcome.kills > 0, "nothing was killed"),
            (silent == 0, "calls without an answer"),
            (
                self.cpu_ratio() <= CPU_RATIO_MAX,
                "processor time of healthy servers",
            ),
            (self.p99_ratio() <= P99_RATIO_MAX, "99th percentile"),
            (after.zombies == 0, "zombies"),
            (after.processes == before.processes, "processes left over"),
            (after.fds <= before.fds, "descriptors left over"),
            (flat, "memory"),
        ];
        let missed = goals.into_iter().filter(|(met, _)| !met);
        missed.map(|(_, goal)| goal.to_owned()).collect()
    }

    pub(crate) fn to_json(&self) -> Value {
        let vitals = |vitals: &Vitals| {
            json!({
                "fds": vitals.fds, "rss_kib": vitals.rss_kib,
                "zombies": vitals.zombies, "processes": vitals.processes,
            })
        };
        json!({
            "undisturbed": self.calm.to_json(),
            "disturbed": self.stormy.to_json(),
            "cpu_ratio": self.cpu_ratio(),
            "p99_ratio": self.p99_ratio(),
            "start": vitals(&self.before),
            "middle": vitals(&self.middle),
            "end": vitals(&self.after),
            "left_out": self.left_out,
            "missed": self.missed(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{:<34}{:>14}{:>14}", "", "undisturbed", "disturbed");
        let mut row = |name: &str, calm: String, stormy: String| {
            let _ = writeln!(out, "{name:<34}{calm:>14}{stormy:>14}");
        };
        let (calm, stormy) = (&self.calm, &self.stormy);
        let rows: [(&str, Figure<'_>); 7] = [
            ("calls of healthy servers", &|side| side.calls().to_string()),
            ("  of them wrong", &|side| side.outcome.errors.to_string()),
            ("CPU us per call, healthy servers", &|side| {
                format!("{:.1}", side.healthy_us())
            }),
            ("CPU us per call, gateway", &|side| {
                format!("{:.1}", side.gateway_us())
            }),
            ("p50 us", &|side| side.percentile(50).to_string()),
            ("p99 us", &|side| side.percentile(99).to_string()),
            ("processes killed", &|side| side.outcome.kills.to_string()),
        ];
        for (name, figure) in rows {
            row(name, figure(calm), figure(stormy));
        }
        let _ = writeln!(
            out,
            "CPU ratio {:.3}, p99 ratio {:.2}",
            self.cpu_ratio(),
            self.p99_ratio()
        );
        for (word, vitals) in [
            ("start", &self.before),
            ("middle", &self.middle),
            ("end", &self.after),
        ] {
            let Vitals {
                fds,
                rss_kib,
                zombies,
                processes,
            } = vitals;
            let _ = writeln!(
                out,
                "{word:<7} {fds} fds, {rss_kib} KiB, {processes} processes, {zombies} zombies"
            );
        }
        for (end, count) in &stormy.outcome.faulty {
            let _ = writeln!(out, "  {end}: {count}");
        }
        for wrong in calm.outcome.wrong.iter().chain(&stormy.outcome.wrong) {
            let _ = writeln!(out, "  wrong: {wrong}");
        }
        for what in &self.left_out {
            let _ = writeln!(out, "  left out: {what}");
        }
        match self.missed().join(", ") {
            missed if missed.is_empty() => out.push_str("chaos: ok\n"),
            missed => {
                let _ = writeln!(out, "chaos: missed: {missed}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_answer_of_a_healthy_server_misses_the_goal() {
        let mut report = Report::default();
        let outcome = |kills| Outcome {
            latencies_us: vec![100; 50],
            kills,
            ..Outcome::default()
        };
        let cpu = Cpu {
            gateway_us: 10,
            healthy_us: 500,
        };
        report.add(false, outcome(0), &cpu);
        report.add(true, outcome(1), &cpu);
        assert_eq!(report.missed(), Vec::<String>::new());
        let wrong = Outcome {
            errors: 1,
            ..Outcome::default()
        };
        report.add(true, wrong, &Cpu::default());
        assert_eq!(report.missed(), ["errors on healthy servers"]);
        report.after.fds = 1;
        assert!(
            report
                .missed()
                .contains(&"descriptors left over".to_owned())
        );
    }
}
