//! Results of a run against its goals.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::chaos_gateway::{CpuTime, ProcessVitals};
use super::chaos_load::ChaosOutcome;

/// Limit of healthy servers' CPU time per call, disturbed to undisturbed.
const CPU_RATIO_MAX: f64 = 1.10;

/// Limit of the 99th percentile, disturbed to undisturbed.
const P99_RATIO_MAX: f64 = 2.0;

/// Growth of the gateway's memory from middle to end that still counts as flat.
const RSS_KIB_SLACK: u64 = 2_048;

/// Sums over the halves of one kind.
#[derive(Debug, Default)]
struct PhaseTotals {
    outcome: ChaosOutcome,
    cpu: CpuTime,
}

/// Formats one figure of a phase.
type FigureFormat<'a> = &'a dyn Fn(&PhaseTotals) -> String;

/// Results of the whole run.
#[derive(Debug, Default)]
pub(crate) struct ChaosReport {
    undisturbed: PhaseTotals,
    disturbed: PhaseTotals,
    pub(super) before: ProcessVitals,
    pub(super) middle: ProcessVitals,
    pub(super) after: ProcessVitals,
    skipped: Vec<String>,
}

impl PhaseTotals {
    fn healthy_calls(&self) -> u64 {
        self.outcome.latencies_us.len() as u64 + self.outcome.errors
    }

    fn latency_percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.outcome.latencies_us.clone();
        sorted.sort_unstable();
        let at = sorted.len().saturating_sub(1) * percent / 100;
        sorted.get(at).copied().unwrap_or(0)
    }

    fn all_calls(&self) -> u64 {
        self.healthy_calls() + self.outcome.faulty.values().sum::<u64>()
    }

    fn healthy_cpu_us(&self) -> f64 {
        self.cpu.healthy_us as f64 / self.healthy_calls().max(1) as f64
    }

    fn gateway_cpu_us(&self) -> f64 {
        self.cpu.gateway_us as f64 / self.all_calls().max(1) as f64
    }

    fn to_json(&self) -> Value {
        json!({
            "healthy_calls": self.healthy_calls(),
            "healthy_errors": self.outcome.errors,
            "healthy_wrong": self.outcome.wrong_responses,
            "healthy_cpu_us_per_call": self.healthy_cpu_us(),
            "gateway_cpu_us_per_call": self.gateway_cpu_us(),
            "p50_us": self.latency_percentile(50),
            "p99_us": self.latency_percentile(99),
            "max_us": self.latency_percentile(100),
            "late": self.outcome.late_calls,
            "kills": self.outcome.kills,
            "faulty": self.outcome.faulty,
        })
    }
}

impl ChaosReport {
    pub(super) fn skip_part(&mut self, what: &str) {
        self.skipped.push(what.to_owned());
    }

    pub(super) fn add_outcome(&mut self, disturbed: bool, outcome: ChaosOutcome, cpu: &CpuTime) {
        let side = if disturbed {
            &mut self.disturbed
        } else {
            &mut self.undisturbed
        };
        side.outcome.merge(outcome);
        side.cpu.gateway_us += cpu.gateway_us;
        side.cpu.healthy_us += cpu.healthy_us;
    }

    fn cpu_ratio(&self) -> f64 {
        self.disturbed.healthy_cpu_us() / self.undisturbed.healthy_cpu_us().max(1.0)
    }

    fn p99_ratio(&self) -> f64 {
        self.disturbed.latency_percentile(99) as f64
            / self.undisturbed.latency_percentile(99).max(1) as f64
    }

    /// Returns the missed goals in words.
    pub(crate) fn missed_goals(&self) -> Vec<String> {
        let errors = self.undisturbed.outcome.errors + self.disturbed.outcome.errors;
        let silent = self.disturbed.outcome.faulty.keys();
        let silent = silent.filter(|end| end.contains("no answer")).count();
        let (before, middle, after) = (&self.before, &self.middle, &self.after);
        let flat = after.rss_kib <= middle.rss_kib + middle.rss_kib / 10 + RSS_KIB_SLACK;
        let goals = [
            (errors == 0, "errors on healthy servers"),
            (self.disturbed.outcome.kills > 0, "nothing was killed"),
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
        let vitals = |vitals: &ProcessVitals| {
            json!({
                "fds": vitals.fds, "rss_kib": vitals.rss_kib,
                "zombies": vitals.zombies, "processes": vitals.processes,
            })
        };
        json!({
            "undisturbed": self.undisturbed.to_json(),
            "disturbed": self.disturbed.to_json(),
            "cpu_ratio": self.cpu_ratio(),
            "p99_ratio": self.p99_ratio(),
            "start": vitals(&self.before),
            "middle": vitals(&self.middle),
            "end": vitals(&self.after),
            "left_out": self.skipped,
            "missed": self.missed_goals(),
        })
    }

    pub(crate) fn to_table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{:<34}{:>14}{:>14}", "", "undisturbed", "disturbed");
        let mut row = |name: &str, calm: String, stormy: String| {
            let _ = writeln!(out, "{name:<34}{calm:>14}{stormy:>14}");
        };
        let (calm, stormy) = (&self.undisturbed, &self.disturbed);
        let rows: [(&str, FigureFormat<'_>); 7] = [
            ("calls of healthy servers", &|side| {
                side.healthy_calls().to_string()
            }),
            ("  of them wrong", &|side| side.outcome.errors.to_string()),
            ("CPU us per call, healthy servers", &|side| {
                format!("{:.1}", side.healthy_cpu_us())
            }),
            ("CPU us per call, gateway", &|side| {
                format!("{:.1}", side.gateway_cpu_us())
            }),
            ("p50 us", &|side| side.latency_percentile(50).to_string()),
            ("p99 us", &|side| side.latency_percentile(99).to_string()),
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
            let ProcessVitals {
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
        for wrong in calm
            .outcome
            .wrong_responses
            .iter()
            .chain(&stormy.outcome.wrong_responses)
        {
            let _ = writeln!(out, "  wrong: {wrong}");
        }
        for what in &self.skipped {
            let _ = writeln!(out, "  left out: {what}");
        }
        match self.missed_goals().join(", ") {
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
    fn wrong_healthy_response_misses_goal() {
        let mut report = ChaosReport::default();
        let outcome = |kills| ChaosOutcome {
            latencies_us: vec![100; 50],
            kills,
            ..ChaosOutcome::default()
        };
        let cpu = CpuTime {
            gateway_us: 10,
            healthy_us: 500,
        };
        report.add_outcome(false, outcome(0), &cpu);
        report.add_outcome(true, outcome(1), &cpu);
        assert_eq!(report.missed_goals(), Vec::<String>::new());
        let wrong = ChaosOutcome {
            errors: 1,
            ..ChaosOutcome::default()
        };
        report.add_outcome(true, wrong, &CpuTime::default());
        assert_eq!(report.missed_goals(), ["errors on healthy servers"]);
        report.after.fds = 1;
        assert!(
            report
                .missed_goals()
                .contains(&"descriptors left over".to_owned())
        );
    }
}
