//! What a run of the benchmark found: a table for people, `results.json` for programs.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    goals::GOALS,
    measure::{self, FIGURES, Run},
    target::Target,
};

/// Others on the machine used this many cores during a run: its times are not to be trusted.
const OTHER_CORES_MAX: f64 = 0.3;

#[derive(Debug, Default)]
pub(super) struct Report {
    /// Medians by target and number of callers.
    pub(super) runs: Vec<Value>,
    ratios: Vec<Value>,
    /// Figures by the name of their goal.
    figures: BTreeMap<&'static str, f64>,
    left_out: Vec<Value>,
}

impl Report {
    pub(super) fn leave_out(&mut self, name: &str, why: &str) {
        eprintln!("bench: left out: {name} ({why})");
        self.left_out.push(json!({"name": name, "why": why}));
    }

    pub(super) fn set(&mut self, name: &'static str, figure: Option<f64>) {
        if let Some(figure) = figure {
            self.figures.insert(name, figure);
        }
    }

    /// The product against its floor: every figure, and the goal where there is one.
    pub(super) fn ratio(&mut self, callers: usize, pairs: &[(Run, Run)]) {
        let of = |figure: &str| measure::ratio(pairs, figure);
        self.compare("bowline/bridge", callers, pairs);
        match callers {
            16 => self.set("cpu_ratio_c16", of("gw_cpu_us")),
            64 => self.set("cpu_ratio_c64", of("gw_cpu_us")),
            _ => {}
        }
    }

    /// One target against another, figure by figure.
    pub(super) fn compare(&mut self, names: &str, callers: usize, pairs: &[(Run, Run)]) {
        let of = |figure: &str| measure::ratio(pairs, figure);
        self.ratios.push(json!({
            "of": names, "callers": callers, "pairs": pairs.len(),
            "cpu": of("gw_cpu_us"), "rps": of("rps"), "p50": of("p50_us"), "p99": of("p99_us"),
        }));
    }

    pub(super) fn pair(
        &mut self,
        below: &Target,
        above: &Target,
        callers: usize,
        pairs: &[(Run, Run)],
    ) {
        let (first, second): (Vec<Run>, Vec<Run>) = pairs.iter().cloned().unzip();
        self.runs
            .push(measure::summary(below.name, callers, &first));
        self.runs
            .push(measure::summary(above.name, callers, &second));
    }

    pub(super) fn to_json(&self) -> Value {
        let goals = GOALS
            .iter()
            .map(|goal| goal.report(self.figures.get(goal.name).copied()));
        json!({
            "v": 1,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "goals": goals.collect::<Vec<_>>(),
            "ratios": self.ratios,
            "runs": self.runs,
            "left_out": self.left_out,
        })
    }

    pub(super) fn write(&self, root: &Path) -> Result<()> {
        let folder = root.join("target/bench");
        fs::create_dir_all(&folder).context("create target/bench")?;
        let text = serde_json::to_string_pretty(&self.to_json())? + "\n";
        fs::write(folder.join("results.json"), text).context("write target/bench/results.json")
    }

    pub(super) fn table(&self) -> String {
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
                write!(out, "{:>10}", number(run.get(*figure)))?;
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
            let callers = number(ratio.get("callers"));
            let names = ratio.get("of").and_then(Value::as_str).unwrap_or_default();
            write!(out, "{names}, {callers} callers:")?;
            for name in ["cpu", "rps", "p50", "p99"] {
                write!(out, "  {name} {}", number(ratio.get(name)))?;
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
            let verdict = goal.verdict(measured).word();
            writeln!(
                out,
                "{:<52}{figure:>10}  {:<12}{verdict}",
                goal.says,
                goal.target()
            )?;
        }
        for left in &self.left_out {
            let word = |key: &str| left.get(key).and_then(Value::as_str).unwrap_or_default();
            writeln!(out, "left out: {} ({})", word("name"), word("why"))?;
        }
        writeln!(out, "written: target/bench/results.json")
    }
}

/// Large figures without, small ones with two decimals.
fn number(value: Option<&Value>) -> String {
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
    fn the_table_says_hit_and_miss_and_what_was_left_out() {
        let mut report = Report::default();
        report.set("idle_mib", Some(12.0));
        report.set("first_call_ms", Some(41.0));
        report.leave_out("nginx", "not installed");
        let table = report.table();
        let line = |word: &str| table.lines().find(|l| l.contains(word)).unwrap_or_default();
        assert!(line("idle gateway").ends_with("hit"), "{table}");
        assert!(line("first right call").ends_with("MISS"), "{table}");
        assert!(line("1,000 tools").ends_with("not measured"), "{table}");
        assert_eq!(line("left out"), "left out: nginx (not installed)");
    }
}
