//! `cargo xtask bench`: measures the gateway against its floors in interleaved pairs of one run.

mod bench_goals;
mod bench_report;
mod bench_target;
mod bench_tools;
mod broker_bench;
mod era_bench;
mod executor_bench;
mod gate_bench;
mod http_bench;
mod journal_bench;
mod measure;
mod reload_bench;
mod sandbox_bench;
mod websocket_relay;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use bench_report::BenchReport;
use bench_target::BenchTarget;
use bench_tools::{BEFORE, BenchTools};
use measure::{ConnectionMode, LoadRun};

/// Numbers of concurrent callers.
const CALLERS: &[usize] = &[1, 16, 64];
/// Callers for figures that must stay flat as tools or sessions grow.
const CALLERS_FLAT: usize = 16;
const SESSIONS: usize = 1_000;
/// Parts that need no load generator.
const GATES: &str = "gates";
const ERAS: &str = "eras";
const JOURNAL: &str = "journal";
const SANDBOX: &str = "sandbox";
const PARTS: &[&str] = &[
    GATES,
    ERAS,
    JOURNAL,
    SANDBOX,
    "calls",
    "http",
    "list",
    "setups",
    "idle",
    "sessions",
    "first",
    "reload",
    "broker",
    "executor",
    "flat-tools",
    "flat-sessions",
];

/// Which parts to measure, and how long.
#[derive(Debug)]
struct BenchPlan {
    pairs: usize,
    run_seconds: &'static str,
    warm_seconds: &'static str,
    parts: Vec<String>,
    json: bool,
    /// Binary of an earlier gateway to compare with, in the parts `calls` and `http`.
    before: Option<PathBuf>,
}

const FULL: (usize, &str, &str) = (7, "2", "0.5");
const QUICK: (usize, &str, &str) = (3, "1", "0.3");

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    // A floor runs as a separate process, so that its CPU time can be measured.
    match rest {
        [word, rest @ ..] if word == "--relay" => {
            websocket_relay::serve_relay(rest)?;
            return Ok(ExitCode::SUCCESS);
        }
        [word, rest @ ..] if word == "--bodies" => {
            executor_bench::serve_bodies(rest)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let plan = parse_plan(rest)?;
    let mut report = BenchReport::default();
    let (alone, others): (Vec<&str>, Vec<&str>) = plan
        .parts
        .iter()
        .map(String::as_str)
        .partition(|part| [GATES, ERAS, JOURNAL, SANDBOX].contains(part));
    for part in alone {
        eprintln!("bench: {part}");
        let measured = match part {
            GATES => gate_bench::measure_gates(root, &mut report),
            ERAS => era_bench::measure_eras(root, &mut report),
            SANDBOX => sandbox_bench::measure_sandbox(root, &mut report),
            _ => journal_bench::measure_journal(root, &plan, &mut report),
        };
        if let Err(error) = measured {
            report.skip_part(part, &format!("{error:#}"));
        }
    }
    if !others.is_empty() {
        measure_loaded_parts(root, &plan, &others, &mut report)?;
    }
    report.write_results(root)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.to_table());
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the parts that need the load generator.
fn measure_loaded_parts(
    root: &Path,
    plan: &BenchPlan,
    parts: &[&str],
    report: &mut BenchReport,
) -> Result<()> {
    let tools = BenchTools::build_programs(root, plan.before.as_deref())?;
    for part in parts {
        eprintln!("bench: {part}");
        // A part that fails must not prevent the remaining parts.
        if let Err(error) = measure_part(&tools, plan, part, report) {
            report.skip_part(part, &format!("{error:#}"));
        }
    }
    Ok(())
}

fn parse_plan(rest: &[String]) -> Result<BenchPlan> {
    let mut plan = BenchPlan {
        pairs: FULL.0,
        run_seconds: FULL.1,
        warm_seconds: FULL.2,
        parts: PARTS.iter().map(|part| (*part).to_owned()).collect(),
        json: false,
        before: None,
    };
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("`{word}` needs a value"))
        };
        match word.as_str() {
            "--quick" => (plan.pairs, plan.run_seconds, plan.warm_seconds) = QUICK,
            "--json" => plan.json = true,
            "--before" => plan.before = Some(read_binary(value()?)?),
            "--pairs" => plan.pairs = value()?.parse().context("`--pairs` needs a number")?,
            "--only" => plan.parts = value()?.split(',').map(str::to_owned).collect(),
            other => bail!("unknown option `{other}`"),
        }
    }
    if let Some(part) = plan
        .parts
        .iter()
        .find(|part| !PARTS.contains(&part.as_str()))
    {
        bail!("`{part}` cannot be measured; known: {}", PARTS.join(", "));
    }
    if plan.pairs == 0 {
        bail!("`--pairs` must be at least 1");
    }
    Ok(plan)
}

/// Returns the path of a gateway binary; fails before anything is built or measured.
fn read_binary(path: &str) -> Result<PathBuf> {
    let binary = Path::new(path).canonicalize();
    binary.with_context(|| format!("`--before` names no gateway binary: {path}"))
}

fn measure_part(
    tools: &BenchTools,
    plan: &BenchPlan,
    part: &str,
    report: &mut BenchReport,
) -> Result<()> {
    match part {
        "calls" => measure_calls(tools, plan, report),
        "http" => http_bench::measure_calls(tools, plan, report),
        "list" => http_bench::measure_tool_list(tools, plan, report),
        "setups" => http_bench::measure_session_setups(tools, plan, report),
        "idle" => measure_idle_memory(tools, plan, report),
        "sessions" => measure_session_memory(tools, plan, report),
        "first" => measure_first_call(tools, plan, report),
        "reload" => reload_bench::measure_reload(tools, plan, report),
        "broker" => broker_bench::measure_broker(tools, plan, report),
        "executor" => executor_bench::measure_executor(tools, plan, report),
        "flat-tools" => measure_flat_tools(tools, plan, report),
        "flat-sessions" => measure_flat_sessions(tools, plan, report),
        other => bail!("`{other}` cannot be measured"),
    }
}

/// Measures every target in turn with each number of callers; reports the ratio to the floor.
fn measure_calls(tools: &BenchTools, plan: &BenchPlan, report: &mut BenchReport) -> Result<()> {
    let mut targets = Vec::new();
    let mut take = |name: &str, made: Result<BenchTarget>| match made {
        Ok(target) => targets.push(target),
        Err(error) => report.skip_part(name, &format!("{error:#}")),
    };
    take("direct", bench_target::start_backend(tools));
    match &tools.nginx {
        Some(nginx) => take("nginx", bench_target::start_nginx(tools, nginx)),
        None => take("nginx", Err(anyhow::anyhow!("not installed"))),
    }
    take("bridge", bench_target::start_bridge(tools));
    for program in tools.gateways() {
        take(
            program.name,
            bench_target::start_bowline_child(tools, program, 0),
        );
    }
    for callers in CALLERS.iter().copied() {
        let mut runs: BTreeMap<&str, Vec<LoadRun>> = BTreeMap::new();
        for turn in 0..plan.pairs {
            // Reversing keeps neighbours adjacent and alternates the order.
            if turn > 0 {
                targets.reverse();
            }
            for target in &targets {
                let run = measure::run_load(tools, plan, target, callers)?;
                runs.entry(target.name).or_default().push(run);
            }
        }
        for (name, runs) in &runs {
            report
                .runs
                .push(measure::summarize_runs(name, callers, runs));
        }
        let pairs = |floor: &str| -> Option<Vec<_>> {
            let (floor, ours) = (runs.get(floor)?, runs.get("bowline")?);
            Some(floor.iter().cloned().zip(ours.iter().cloned()).collect())
        };
        if let Some(pairs) = pairs("bridge") {
            report.add_bridge_ratio(callers, &pairs);
        }
        if let Some(pairs) = pairs(BEFORE) {
            report.add_ratios("bowline/before", callers, &pairs);
        }
    }
    Ok(())
}

/// Measures idle memory after the first call.
fn measure_idle_memory(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let mut figures = Vec::new();
    for _ in 0..memory_repeats(plan) {
        let target = bench_target::start_bowline(tools, "bowline", 0)?;
        let raw = measure::open_sessions(tools, &target, 0, ConnectionMode::Shared)?;
        figures.extend(raw.get("rss_before_mib").and_then(Value::as_f64));
    }
    report.set_figure("idle_mib", measure::median(figures));
    Ok(())
}

/// Measures memory per open session on a gateway that has already served calls.
fn measure_session_memory(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    for (name, connections) in [
        ("session_kib", ConnectionMode::Shared),
        ("session_own_kib", ConnectionMode::Dedicated),
    ] {
        let mut figures = Vec::new();
        for _ in 0..memory_repeats(plan) {
            let target = bench_target::start_bowline(tools, "bowline", 0)?;
            measure::run_load(tools, plan, &target, CALLERS_FLAT)?;
            let raw = measure::open_sessions(tools, &target, SESSIONS, connections)?;
            figures.extend(raw.get("kib_per_session").and_then(Value::as_f64));
        }
        report.set_figure(name, measure::median(figures));
    }
    Ok(())
}

fn measure_first_call(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let figures = (0..plan.pairs)
        .map(|_| measure::time_first_call(tools))
        .collect::<Result<Vec<_>>>()?;
    report.set_figure("first_call_ms", measure::median(figures));
    Ok(())
}

fn measure_flat_tools(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let few = bench_target::start_bowline(tools, "bowline, 10 tools", 10)?;
    let many = bench_target::start_bowline(tools, "bowline, 1000 tools", 1_000)?;
    let pairs = measure::run_pairs(tools, plan, &few, &many, CALLERS_FLAT)?;
    report.add_pair_runs(&few, &many, CALLERS_FLAT, &pairs);
    report.set_figure("flat_tools", measure::median_ratio(&pairs, "gw_cpu_us"));
    Ok(())
}

fn measure_flat_sessions(
    tools: &BenchTools,
    plan: &BenchPlan,
    report: &mut BenchReport,
) -> Result<()> {
    let few = bench_target::start_bowline(tools, "bowline, 1 session", 0)?;
    let many = bench_target::start_bowline(tools, "bowline, 1000 sessions", 0)?;
    measure::open_sessions(tools, &few, 1, ConnectionMode::Shared)?;
    measure::open_sessions(tools, &many, SESSIONS, ConnectionMode::Shared)?;
    let pairs = measure::run_pairs(tools, plan, &few, &many, CALLERS_FLAT)?;
    report.add_pair_runs(&few, &many, CALLERS_FLAT, &pairs);
    report.set_figure("flat_sessions", measure::median_ratio(&pairs, "gw_cpu_us"));
    Ok(())
}

/// Memory figures vary little and need fewer repeats than pairs.
fn memory_repeats(plan: &BenchPlan) -> usize {
    plan.pairs.div_ceil(3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_words(words: &[&str]) -> Result<BenchPlan> {
        parse_plan(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn plan_parses_options_or_names_unknown() {
        let plan =
            parse_words(&["--quick", "--only", "idle,first", "--json", "--pairs", "5"]).unwrap();
        assert_eq!((plan.pairs, plan.run_seconds, plan.json), (5, "1", true));
        assert_eq!(plan.parts, ["idle", "first"]);
        for (words, named) in [
            (&["--only", "idel"][..], "idel"),
            (&["--only"], "--only"),
            (&["--fast"], "--fast"),
            (&["--pairs", "0"], "--pairs"),
            (&["--before", "no-such-binary"], "no-such-binary"),
        ] {
            let error = parse_words(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn empty_report_marks_goals_not_measured() {
        let goals = BenchReport::default().to_json();
        let goals = goals
            .get("goals")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        assert!(
            goals
                .iter()
                .all(|goal| goal.get("verdict") == Some(&json!("not measured")))
        );
        assert!(!goals.is_empty());
    }
}
