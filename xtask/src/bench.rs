//! `cargo xtask bench`: measures the gateway beside its floors, in one run, in interleaved pairs.

mod broker;
mod eras;
mod executor;
mod gates;
mod goals;
mod http;
mod journal;
mod measure;
mod relay;
mod reload;
mod report;
mod sandbox;
mod target;
mod tools;

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use measure::{Connections, Run};
use report::Report;
use target::Target;
use tools::Tools;

/// Callers at once.
const CALLERS: &[usize] = &[1, 16, 64];
/// For figures that must not grow with anything.
const CALLERS_FLAT: usize = 16;
const SESSIONS: usize = 1_000;
/// The parts that need no other program.
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

/// How much to measure.
#[derive(Debug)]
struct Plan {
    pairs: usize,
    run_seconds: &'static str,
    warm_seconds: &'static str,
    parts: Vec<String>,
    json: bool,
}

const FULL: (usize, &str, &str) = (7, "2", "0.5");
const QUICK: (usize, &str, &str) = (3, "1", "0.3");

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    // A floor is a process of its own, so that its processor time can be told.
    match rest {
        [word, rest @ ..] if word == "--relay" => {
            relay::serve(rest)?;
            return Ok(ExitCode::SUCCESS);
        }
        [word, rest @ ..] if word == "--bodies" => {
            executor::serve(rest)?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let plan = plan(rest)?;
    let mut report = Report::default();
    let (alone, others): (Vec<&str>, Vec<&str>) = plan
        .parts
        .iter()
        .map(String::as_str)
        .partition(|part| [GATES, ERAS, JOURNAL, SANDBOX].contains(part));
    for part in alone {
        eprintln!("bench: {part}");
        let measured = match part {
            GATES => gates::measure(root, &mut report),
            ERAS => eras::measure(root, &mut report),
            SANDBOX => sandbox::measure(root, &mut report),
            _ => journal::measure(root, &plan, &mut report),
        };
        if let Err(error) = measured {
            report.leave_out(part, &format!("{error:#}"));
        }
    }
    if !others.is_empty() {
        measure_others(root, &plan, &others, &mut report)?;
    }
    report.write(root)?;
    if plan.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.table());
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures the parts that need the load generator.
fn measure_others(root: &Path, plan: &Plan, parts: &[&str], report: &mut Report) -> Result<()> {
    let Some(tools) = Tools::build(root)? else {
        let why = "../shared/bench is not there: nothing is measured";
        report.leave_out("mcpbench", why);
        return Ok(());
    };
    for part in parts {
        eprintln!("bench: {part}");
        // One part that cannot be measured must not take the others with it.
        if let Err(error) = measure_part(&tools, plan, part, report) {
            report.leave_out(part, &format!("{error:#}"));
        }
    }
    Ok(())
}

fn plan(rest: &[String]) -> Result<Plan> {
    let mut plan = Plan {
        pairs: FULL.0,
        run_seconds: FULL.1,
        warm_seconds: FULL.2,
        parts: PARTS.iter().map(|part| (*part).to_owned()).collect(),
        json: false,
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

fn measure_part(tools: &Tools, plan: &Plan, part: &str, report: &mut Report) -> Result<()> {
    match part {
        "calls" => calls(tools, plan, report),
        "http" => http::calls(tools, plan, report),
        "list" => http::list(tools, plan, report),
        "setups" => http::setups(tools, plan, report),
        "idle" => idle(tools, plan, report),
        "sessions" => sessions(tools, plan, report),
        "first" => first(tools, plan, report),
        "reload" => reload::reload(tools, plan, report),
        "broker" => broker::broker(tools, plan, report),
        "executor" => executor::executor(tools, plan, report),
        "flat-tools" => flat_tools(tools, plan, report),
        "flat-sessions" => flat_sessions(tools, plan, report),
        other => bail!("`{other}` cannot be measured"),
    }
}

/// Every target in turn at every number of callers; the ratio of the product to its floor.
fn calls(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let mut targets = Vec::new();
    let mut take = |name: &str, made: Result<Target>| match made {
        Ok(target) => targets.push(target),
        Err(error) => report.leave_out(name, &format!("{error:#}")),
    };
    take("direct", target::direct(tools));
    match &tools.nginx {
        Some(nginx) => take("nginx", target::nginx(tools, nginx)),
        None => take("nginx", Err(anyhow::anyhow!("not installed"))),
    }
    take("bridge", target::bridge(tools));
    take("bowline", target::bowline(tools, "bowline", 0));
    for callers in CALLERS.iter().copied() {
        let mut runs: BTreeMap<&str, Vec<Run>> = BTreeMap::new();
        for turn in 0..plan.pairs {
            // Neighbours stay neighbours, but who goes first changes.
            if turn > 0 {
                targets.reverse();
            }
            for target in &targets {
                let run = measure::load(tools, plan, target, callers)?;
                runs.entry(target.name).or_default().push(run);
            }
        }
        for (name, runs) in &runs {
            report.runs.push(measure::summary(name, callers, runs));
        }
        if let (Some(bridge), Some(bowline)) = (runs.get("bridge"), runs.get("bowline")) {
            let pairs: Vec<_> = bridge
                .iter()
                .cloned()
                .zip(bowline.iter().cloned())
                .collect();
            report.ratio(callers, &pairs);
        }
    }
    Ok(())
}

/// Memory after the first call, with nobody calling.
fn idle(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let mut figures = Vec::new();
    for _ in 0..repeats(plan) {
        let target = target::bowline(tools, "bowline", 0)?;
        let raw = measure::open(tools, &target, 0, Connections::Shared)?;
        figures.extend(raw.get("rss_before_mib").and_then(Value::as_f64));
    }
    report.set("idle_mib", measure::median(figures));
    Ok(())
}

/// Memory per open session, on a gateway that has served calls before.
fn sessions(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    for (name, connections) in [
        ("session_kib", Connections::Shared),
        ("session_own_kib", Connections::Own),
    ] {
        let mut figures = Vec::new();
        for _ in 0..repeats(plan) {
            let target = target::bowline(tools, "bowline", 0)?;
            measure::load(tools, plan, &target, CALLERS_FLAT)?;
            let raw = measure::open(tools, &target, SESSIONS, connections)?;
            figures.extend(raw.get("kib_per_session").and_then(Value::as_f64));
        }
        report.set(name, measure::median(figures));
    }
    Ok(())
}

fn first(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let figures = (0..plan.pairs)
        .map(|_| measure::first(tools))
        .collect::<Result<Vec<_>>>()?;
    report.set("first_call_ms", measure::median(figures));
    Ok(())
}

fn flat_tools(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let few = target::bowline(tools, "bowline, 10 tools", 10)?;
    let many = target::bowline(tools, "bowline, 1000 tools", 1_000)?;
    let pairs = measure::pairs(tools, plan, &few, &many, CALLERS_FLAT)?;
    report.pair(&few, &many, CALLERS_FLAT, &pairs);
    report.set("flat_tools", measure::ratio(&pairs, "gw_cpu_us"));
    Ok(())
}

fn flat_sessions(tools: &Tools, plan: &Plan, report: &mut Report) -> Result<()> {
    let few = target::bowline(tools, "bowline, 1 session", 0)?;
    let many = target::bowline(tools, "bowline, 1000 sessions", 0)?;
    measure::open(tools, &few, 1, Connections::Shared)?;
    measure::open(tools, &many, SESSIONS, Connections::Shared)?;
    let pairs = measure::pairs(tools, plan, &few, &many, CALLERS_FLAT)?;
    report.pair(&few, &many, CALLERS_FLAT, &pairs);
    report.set("flat_sessions", measure::ratio(&pairs, "gw_cpu_us"));
    Ok(())
}

/// Figures of memory move little: fewer repeats than pairs.
fn repeats(plan: &Plan) -> usize {
    plan.pairs.div_ceil(3)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(words: &[&str]) -> Result<Plan> {
        plan(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn options_are_understood_or_refused_by_name() {
        let plan = of(&["--quick", "--only", "idle,first", "--json", "--pairs", "5"]).unwrap();
        assert_eq!((plan.pairs, plan.run_seconds, plan.json), (5, "1", true));
        assert_eq!(plan.parts, ["idle", "first"]);
        for (words, named) in [
            (&["--only", "idel"][..], "idel"),
            (&["--only"], "--only"),
            (&["--fast"], "--fast"),
            (&["--pairs", "0"], "--pairs"),
        ] {
            let error = of(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_report_without_measurements_misses_nothing_and_hits_nothing() {
        let goals = Report::default().to_json();
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
