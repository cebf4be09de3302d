//! `cargo xtask walk`: the source files that one `tools/call` executes.
//!
//! A gateway built without optimisation runs under callgrind before one stdio server. Every round
//! zeroes the counters, makes one call over HTTP and dumps the counters; idle rounds make no call.
//! A file counts if every call executes code of the file beyond what idle rounds execute, so that
//! start-up, first calls and timers are left out. Line tables name the file of inlined code too.

mod call_profile;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::blocking_client::BlockingClient;
use crate::running_gateway::RunningGateway;
use crate::{load_generator, process};
use call_profile::{CallProfile, FileCost};

/// Calls before the first round: caches, lazy set-up and first-time paths are left out.
const WARM_CALLS: usize = 20;
/// Rounds with one call, and as many rounds without.
const ROUNDS: usize = 8;
/// Time after a response for work that a call leaves behind, such as its audit entry.
const SETTLE_TIME: Duration = Duration::from_millis(300);
const SERVER_CONFIG: &str = "[servers.b]\nargs = [\"stdio\"]\ncommand = ";
/// Name of the tool `echo` of the server `b`.
const TOOL: &str = "b__echo";

#[derive(Debug, Default)]
struct WalkPlan {
    /// Workspace whose gateway is built and measured.
    root: Option<PathBuf>,
    /// The gateway binary with line tables; built if `None`.
    binary: Option<PathBuf>,
    /// More files than this fail the command.
    files_max: Option<usize>,
    list: bool,
    json: bool,
}

pub(crate) fn run(root: &Path, rest: &[String]) -> Result<ExitCode> {
    let plan = parse_plan(rest)?;
    process::run_captured_in(root, "callgrind_control", &["--version"])
        .context("valgrind is not installed")?;
    let binary = match &plan.binary {
        Some(binary) => binary.canonicalize()?,
        None => build_gateway(plan.root.as_deref().unwrap_or(root))?,
    };
    let server = load_generator::build_unoptimized(root)?;
    let folder = root.join(format!("target/walk-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let measured = measure_calls(root, &folder, &binary, &server);
    let _ = fs::remove_dir_all(&folder);
    let files = measured?;
    print_files(&plan, &files)?;
    let too_many = plan.files_max.is_some_and(|max| files.len() > max);
    Ok(if too_many {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn parse_plan(rest: &[String]) -> Result<WalkPlan> {
    let mut plan = WalkPlan::default();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("`{word}` needs a value"))
        };
        match word.as_str() {
            "--root" => plan.root = Some(value()?.into()),
            "--binary" => plan.binary = Some(value()?.into()),
            "--max" => plan.files_max = Some(value()?.parse().context("`--max` needs a number")?),
            "--list" => plan.list = true,
            "--json" => plan.json = true,
            other => bail!("unknown option `{other}`"),
        }
    }
    Ok(plan)
}

/// Builds the gateway of a workspace with the dev profile: line tables, little inlining.
fn build_gateway(root: &Path) -> Result<PathBuf> {
    eprintln!("walk: building bowline");
    let root = root.canonicalize()?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "bowline"]);
    process::run_inherited(cargo.current_dir(&root))?;
    Ok(process::target_folder(&root).join("debug/bowline"))
}

/// Returns the files that every call executes, with their median cost.
fn measure_calls(
    root: &Path,
    folder: &Path,
    binary: &Path,
    server: &Path,
) -> Result<BTreeMap<String, FileCost>> {
    let counters = folder.join("counters");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--dump-line=yes", "--quiet"]);
    valgrind.arg(format!("--callgrind-out-file={}", counters.display()));
    valgrind.arg(binary);
    eprintln!("walk: starting the gateway under callgrind");
    let config = format!("{SERVER_CONFIG}{server:?}\n");
    let gateway = RunningGateway::start(root, valgrind, &config)?;
    let mut client = BlockingClient::open_session(gateway.address, &gateway.owner_token)?;
    for nth in 0..WARM_CALLS {
        call_echo(&mut client, nth)?;
    }
    let mut counters = CounterFiles {
        pid: gateway.pid().to_string(),
        path: counters,
        dumps: 0,
    };
    let (mut busy, mut idle) = (Vec::new(), Vec::new());
    for nth in 0..ROUNDS {
        busy.push(counters.profile_round(|| call_echo(&mut client, nth))?);
        idle.push(counters.profile_round(|| Ok(()))?);
    }
    Ok(select_files(&busy, &idle))
}

fn call_echo(client: &mut BlockingClient, nth: usize) -> Result<()> {
    let response = client.call_tool(TOOL, &json!({"message": format!("m-{nth}")}))?;
    if response.pointer("/result/content/0/text") != Some(&json!(format!("m-{nth}"))) {
        bail!("wrong response: {response}");
    }
    Ok(())
}

/// Counters of a process under callgrind.
#[derive(Debug)]
struct CounterFiles {
    pid: String,
    /// Path of the dumps without their number.
    path: PathBuf,
    dumps: usize,
}

impl CounterFiles {
    /// Zeroes the counters, runs `action`, and returns what the process executed meanwhile.
    fn profile_round(&mut self, action: impl FnOnce() -> Result<()>) -> Result<CallProfile> {
        self.control("--zero")?;
        action()?;
        thread::sleep(SETTLE_TIME);
        self.control("--dump")?;
        self.dumps += 1;
        let path = format!("{}.{}", self.path.display(), self.dumps);
        let text = fs::read(&path).with_context(|| format!("no counters in {path}"))?;
        Ok(CallProfile::from_dump(&String::from_utf8_lossy(&text)))
    }

    fn control(&self, command: &str) -> Result<()> {
        let mut control = Command::new("callgrind_control");
        process::run_captured(control.args([command, &self.pid])).map(drop)
    }
}

/// Returns the files whose code ran in every busy round, and more than in any idle round.
fn select_files(busy: &[CallProfile], idle: &[CallProfile]) -> BTreeMap<String, FileCost> {
    let paths: BTreeSet<&String> = busy.iter().flat_map(|round| round.files.keys()).collect();
    let selected = paths.into_iter().filter_map(|path| {
        let cost = |round: &CallProfile| round.files.get(path).copied().unwrap_or_default();
        let mut costs: Vec<FileCost> = busy.iter().map(cost).collect();
        costs.sort_by_key(|cost| cost.instructions);
        let idle_max = idle.iter().map(|round| cost(round).instructions).max();
        let least = costs.first()?.instructions;
        let median = *costs.get(costs.len() / 2)?;
        (least > idle_max.unwrap_or(0)).then(|| (path.clone(), median))
    });
    selected.collect()
}

fn print_files(plan: &WalkPlan, files: &BTreeMap<String, FileCost>) -> Result<()> {
    let instructions: u64 = files.values().map(|cost| cost.instructions).sum();
    if plan.json {
        let rows = files.iter().map(|(path, cost)| {
            json!({"path": path, "entries": cost.entries, "instructions": cost.instructions})
        });
        let list: Value = rows.collect();
        let report = json!({"files": files.len(), "instructions": instructions, "list": list});
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    if plan.list {
        println!("functions entered  instructions  file");
        for (path, cost) in files {
            println!("{:>17}  {:>12}  {path}", cost.entries, cost.instructions);
        }
    }
    let verdict = match plan.files_max {
        Some(max) if files.len() > max => format!(" (at most {max} are allowed)"),
        _ => String::new(),
    };
    println!(
        "walk: {} files execute one tools/call{verdict}",
        files.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(files: &[(&str, u64)]) -> CallProfile {
        let cost = |instructions| FileCost {
            instructions,
            entries: 1,
        };
        let files = files.iter().map(|(path, n)| ((*path).to_owned(), cost(*n)));
        CallProfile {
            files: files.collect(),
        }
    }

    #[test]
    fn rare_and_idle_files_are_left_out() {
        let busy = [
            profile(&[("call", 10), ("timer", 5), ("rare", 7)]),
            profile(&[("call", 12), ("timer", 5), ("both", 9)]),
        ];
        let idle = [profile(&[("timer", 5)]), profile(&[])];
        let files = select_files(&busy, &idle);
        assert_eq!(files.into_keys().collect::<Vec<_>>(), ["call"]);
    }

    #[test]
    fn plan_parses_options_or_names_unknown() {
        let words =
            |words: &[&str]| parse_plan(&words.iter().map(|w| (*w).into()).collect::<Vec<_>>());
        let plan = words(&["--root", "x", "--max", "7", "--list"]).unwrap();
        assert_eq!((plan.root, plan.files_max), (Some("x".into()), Some(7)));
        assert!(
            words(&["--fast"])
                .unwrap_err()
                .to_string()
                .contains("--fast")
        );
    }
}
