//! Developer tool: checks, tests, test peers and measurements.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's tool that talks to its terminal; it is no part of the product"
)]

mod bench;
mod blocking_client;
mod broker_chaos;
mod call_pacer;
mod chaos;
mod check;
mod codex_process;
mod crash_test;
mod deny;
mod embed_cost;
mod endurance;
mod examples;
mod executor_chaos;
mod floods;
mod http_fixture;
mod load_generator;
mod netns;
mod omitted_tests;
mod peers;
mod process;
mod raw_websocket;
mod repo;
mod roundtrip;
mod running_gateway;
mod sbom;
mod sim;
mod soak;
mod test;
mod tidy;
mod walk;
mod write_chaos;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  check    formatting, clippy with warnings denied, the library with each feature alone, tidy,
           licences and sources of dependencies
  examples build and run examples/ outside the workspace, as its users would
  embed-cost
           crates and processor time to build the smallest embedding program, without a feature
           and with HTTP; over the limits it fails
  tidy     the house rules that no lint knows
  peers    fetch the pinned test peers into target/peers [--list] [--json]
  peers lock
           resolve what the peers pull in anew, with hashes, into xtask/locks
  peers matrix
           every client to every server through the gateway; writes docs/compatibility.md
           [--json] [--only CLIENT/SERVER]
  roundtrip
           a thousand generated messages of every type through the gateway [--instances N]
  sbom     what the product is made of, as CycloneDX 1.6 [--out FILE]
  test     check, peers, every test of the workspace, a short broker-chaos, a short
           executor-chaos, short floods: what CI runs
  sim      random worlds on a virtual clock, 20,000 seeds [--seeds N] [--from SEED] [--seed S]
           [--json]
  chaos    healthy servers beside five faulty ones [--minutes N] [--seconds N] [--rate N]
           [--crashes-per-minute N] [--binary PATH] [--json]
  crash-test
           what the journal keeps through kill -9, power cuts, flipped bits and failing disks
           [--kills N] [--cuts N] [--flips N] [--faults] [--quick] [--seed N] [--json]
  write-chaos
           numbered writes while server, gateway and network are killed [--calls N] [--kills N]
           [--seed S]
  broker-chaos
           numbered calls between a hub and a worker in a network of its own, while links are cut
           and both are killed [--calls N] [--faults N] [--seed S] [--short] [--proxy]
           [--binary PATH] [--keep]
  executor-chaos
           calls through an executor while the connection with it is cut [--cuts N] [--seed S]
           [--short] [--binary PATH]
  floods   one low principal, or nobody, floods the gateway while its owner works [--seconds N]
           [--only NAME,..] [--short] [--binary PATH] [--json]
  endurance
           half an hour of calls and queued writes while servers are killed: lost and repeated
           writes, recovery, slope of the gateway's memory [--minutes N] [--seconds N] [--rate N]
           [--binary PATH] [--json]
  netns    both SDKs call servers that only an executor reaches: it and they are in one network
           namespace, the gateway and the clients in another, with nothing between (root)
  soak     sim, crash-test, write-chaos, broker-chaos, executor-chaos, chaos, and the long forms
           of tests; three quarters of an hour
  bench    measure the gateway [--quick] [--only what,..] [--json] [--pairs N]
           [--before BINARY]
  walk     the source files that one tools/call executes, counted under callgrind [--list]
           [--json] [--max N] [--root WORKSPACE] [--binary PATH]
  count    lines of code of each crate, and repetitions in the code [--root WORKSPACE]
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let rest: Vec<String> = words.collect();
    match run_command(&command, &rest) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask {command}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: &str, rest: &[String]) -> Result<ExitCode> {
    let root = repo::workspace_root()?;
    match command {
        "check" => reject_options(rest).and_then(|()| check::run(&root)),
        "examples" => reject_options(rest).and_then(|()| examples::run(&root)),
        "embed-cost" => reject_options(rest).and_then(|()| embed_cost::run(&root)),
        "tidy" => reject_options(rest).and_then(|()| tidy::run(&root)),
        "peers" => peers::run(&root, rest),
        "roundtrip" => roundtrip::run(&root, rest),
        "test" => reject_options(rest).and_then(|()| test::run(&root)),
        "sim" => sim::run(&root, rest),
        "chaos" => chaos::run(&root, rest),
        "crash-test" => crash_test::run(&root, rest),
        "write-chaos" => write_chaos::run(&root, rest),
        "broker-chaos" => broker_chaos::run(&root, rest),
        "executor-chaos" => executor_chaos::run(&root, rest),
        "sbom" => sbom::run(&root, rest),
        "floods" => floods::run(&root, rest),
        "endurance" => endurance::run(&root, rest),
        "netns" => netns::run(&root, rest),
        "soak" => reject_options(rest).and_then(|()| soak::run(&root)),
        "bench" => bench::run(&root, rest),
        "walk" => walk::run(&root, rest),
        "count" => tidy::code_counts::run(&root, rest),
        "" | "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("unknown command `{other}`\n\n{USAGE}"),
    }
}

fn reject_options(rest: &[String]) -> Result<()> {
    match rest.first() {
        None => Ok(()),
        Some(word) => bail!("unexpected argument `{word}`"),
    }
}
