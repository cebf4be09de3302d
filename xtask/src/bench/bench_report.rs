//! Result of a benchmark: a table for humans, `results.json` for programs.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    bench_goals::GOALS,
    bench_target::BenchTarget,
    measure::{self, FIGURES, LoadRun},
};

/// CPU use of other processes above which a run counts as noisy, in cores.
const OTHER_CORES_MAX: f64 = 0.3;

#[derive(Debug, Default)]
pub(super) struct BenchReport {
    /// Medians by target and number of callers.
    pub(super) runs: Vec<Value>,
    ratios: Vec<Value>,
    /// Figures by the name of their goal.
    figures: BTreeMap<&'static str, f64>,
    skipped: Vec<Value>,
}

impl BenchReport {
    pub(super) fn skip_part(&mut self, name: &str, why: &str) {
        eprintln!("bench: left out: {name} ({why})");
        self.skipped.push(json!({"name": name, "why": why}));
    }

    pub(super) fn set_figure(&mut self, name: &'static str, figure: Option<f64>) {
        if let Some(figure) = figure {
            self.figures.insert(name, figure);
        }
    }

    /// Adds the ratios of the gateway to the bridge, and sets the goals for 16 and 64 callers.
    pub(super) fn add_bridge_ratio(&mut self, callers: usize, pairs: &[(LoadRun, LoadRun)]) {
        let of = |figure: &str| measure::median_ratio(pairs, figure);
        self.add_ratios("bowline/bridge", callers, pairs);
        match callers {
            16 => self.set_figure("cpu_ratio_c16", of("gw_cpu_us")),
            64 => self.set_figure("cpu_ratio_c64", of("gw_cpu_us")),
            _ => {}
        }
    }

    /// Adds the ratios of all figures of one target to another.
    pub(super) fn add_ratios(&mut self, names: &str, callers: usize, pairs: &[(LoadRun, LoadRun)]) {
        let of = |figure: &str| measure::median_ratio(pairs, figure);
        self.ratios.push(json!({
            "of": names, "callers": callers, "pairs": pairs.len(),
            "cpu": of("gw_cpu_us"), "rps": of("rps"), "p50": of("p50_us"), "p99": of("p99_us"),
        }));
    }

    pub(super) fn add_pair_runs(
        &mut self,
        below: &BenchTarget,
        above: &BenchTarget,
        callers: usize,
        pairs: &[(LoadRun, LoadRun)],
    ) {
        let (first, second): (Vec<LoadRun>, Vec<LoadRun>) = pairs.iter().cloned().unzip();
        self.runs
            .push(measure::summarize_runs(below.name, callers, &first));
        self.runs
            .push(measure::summarize_runs(above.name, callers, &second));
    }

    pub(super) fn to_json(&self) -> Value {
        let goals = GOALS
            .iter()
            .map(|goal| goal.to_json(self.figures.get(goal.name).copied()));
        json!({
            "v": 1,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "goals": goals.collect::<Vec<_>>(),
            "ratios": self.ratios,
            "runs": self.runs,
            "left_out": self.skipped,
        })
    }

    pub(super) fn write_results(&self, root: &Path) -> Result<()> {
        let folder = root.join("target/bench");
        fs::create_dir_all(&folder).context("create target/bench")?;
        let text = serde_json::to_string_pretty(&self.to_json())? + "\n";
        fs::write(folder.join("results.json"), text).context("write target/bench/results.json")
    }

    pub(super) fn to_table(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut out);
        out
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        if !self.runs.is_empty() {
            write!(out, "{:<24}{:>8}", "medians", "callers")?;
            for head in ["req/s", "p50 us", "p99 us", "CPU us", "RSS MiB", "others"] {
                write!(out, "{head:>10}")?;
            }
            writeln!(out)?;
        }
        for run in &self.runs {
            let name = run
                .get("target")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let callers = run.get("callers").and_then(Value::as_u64).unwrap_or(0);
            write!(out, "{name:<24}{callers:>8}")?;
            for figure in FIGURES.iter().chain(&["other_cores"]) {
                write!(out, "{:>10}", format_figure(run.get(*figure)))?;
            }
            let others = run
                .get("other_cores")
                .and_then(Value::as_f64)
                .unwrap_or(0.0);
            writeln!(
                out,
                "{}",
                if others > OTHER_CORES_MAX {
                    "  noisy"
                } else {
                    ""
                }
            )?;
        }
        for ratio in &self.ratios {
            let callers = format_figure(ratio.get("callers"));
            let names = ratio.get("of").and_then(Value::as_str).unwrap_or_default();
            write!(out, "{names}, {callers} callers:")?;
            for name in ["cpu", "rps", "p50", "p99"] {
                write!(out, "  {name} {}", format_figure(ratio.get(name)))?;
            }
            writeln!(out)?;
        }
        self.write_goals(out)
    }

    fn write_goals(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\n{:<52}{:>10}  {:<12}verdict",
            "goal", "measured", "target"
        )?;
        for goal in GOALS {
            let measured = self.figures.get(goal.name).copied();
            let figure = measured.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"));
            let verdict = goal.verdict(measured).as_str();
            writeln!(
                out,
                "{:<52}{figure:>10}  {:<12}{verdict}",
                goal.description,
                goal.target_text()
            )?;
        }
        for left in &self.skipped {
            let word = |key: &str| left.get(key).and_then(Value::as_str).unwrap_or_default();
            writeln!(out, "left out: {} ({})", word("name"), word("why"))?;
        }
        writeln!(out, "written: target/bench/results.json")
    }
}

/// Formats figures from 1,000 without decimals, smaller ones with two.
fn format_figure(value: Option<&Value>) -> String {
    match value.and_then(Value::as_f64) {
        Some(figure) if figure >= 1_000.0 || figure.fract() == 0.0 => format!("{figure:.0}"),
        Some(figure) => format!("{figure:.2}"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_verdicts_and_skipped_parts() {
        let mut report = BenchReport::default();
        report.set_figure("idle_mib", Some(12.0));
        report.set_figure("first_call_ms", Some(41.0));
        report.skip_part("nginx", "not installed");
        let table = report.to_table();
        let line = |word: &str| table.lines().find(|l| l.contains(word)).unwrap_or_default();
        assert!(line("idle gateway").ends_with("hit"), "{table}");
        assert!(line("first correct response").ends_with("MISS"), "{table}");
        assert!(line("1,000 tools").ends_with("not measured"), "{table}");
        assert_eq!(line("left out"), "left out: nginx (not installed)");
    }
}
