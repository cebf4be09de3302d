//! Child processes, and facts that only the operating system has.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// Lines of a failed program's output in the error.
const TAIL_LINES_MAX: usize = 15;

/// Interval of the checks whether a program has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Runs a program with its output on our terminal; an unsuccessful exit is an error.
pub(crate) fn run_inherited(command: &mut Command) -> Result<()> {
    let name = display_name(command);
    let status = command
        .status()
        .with_context(|| format!("could not start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// Returns the path of the test server, which stands beside the gateway's binary.
pub(crate) fn fixture_binary(gateway: &Path) -> PathBuf {
    gateway.with_file_name("bowline-fixture")
}

/// Sends SIGTERM, and SIGKILL after `seconds_max` seconds.
pub(crate) fn terminate(child: &mut Child, seconds_max: u64) {
    let _ = run_captured(Command::new("kill").arg(child.id().to_string()));
    let start = now();
    while start.elapsed().as_secs() < seconds_max {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(POLL_INTERVAL);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs a program and returns its standard output; the error holds the last lines of output.
pub(crate) fn run_captured(command: &mut Command) -> Result<String> {
    let name = display_name(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{name}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let words = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    bail!(
        "`{name}` failed ({})\n{}",
        output.status,
        last_lines(&words)
    )
}

/// Like [`run_captured`], in a directory.
pub(crate) fn run_captured_in(dir: &Path, program: &str, args: &[&str]) -> Result<String> {
    run_captured(Command::new(program).args(args).current_dir(dir))
}

/// Returns the first line of standard output; a thread drains the rest, so that the child never
/// blocks on a full pipe.
pub(crate) fn read_ready_line(child: &mut Child, seconds_max: u64) -> Result<String> {
    let stdout = child.stdout.take().context("no standard output")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let _ = reader.read_line(&mut line);
        // After the deadline the receiver is gone.
        let _ = sender.send(line);
        let _ = std::io::copy(&mut reader, &mut std::io::sink());
    });
    let line = receiver
        .recv_timeout(Duration::from_secs(seconds_max))
        .context("no ready line in time")?;
    if line.trim().is_empty() {
        bail!("it ended without a ready line");
    }
    Ok(line)
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")
        .context("no free port")?
        .local_addr()?
        .port())
}

/// Returns the folder that Cargo builds a workspace into.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    env_var("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Returns the CPU time of all live threads of a process.
pub(crate) fn thread_cpu_us(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let spent = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    spent.sum::<u64>() / 1_000
}

/// Returns the CPU time of a process including exited threads, in the kernel's ticks of 10 ms.
pub(crate) fn process_cpu_us(pid: u32) -> u64 {
    stat_cpu_us(pid, 11)
}

/// Returns the CPU time of the ended children of this process, and of theirs.
pub(crate) fn children_cpu_us() -> u64 {
    stat_cpu_us(std::process::id(), 13)
}

/// Returns the sum of user and system time, at the first of their fields after the name.
fn stat_cpu_us(pid: u32, first_field: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program name is in parentheses and may contain any character.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(first_field).take(2);
    let ticks = ticks.filter_map(|tick| tick.parse::<u64>().ok());
    ticks.sum::<u64>() * 10_000
}

/// Returns the CPU time used on this machine since boot, in the kernel's ticks of 10 ms.
pub(crate) fn machine_cpu_us() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = cpu.unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = ticks.filter_map(|tick| tick.parse().ok()).collect();
    // Fields: user, nice, system, idle, iowait, irq, softirq; user already includes guests.
    let busy = ticks.iter().take(7).enumerate();
    let busy = busy.filter(|(nth, _)| ![3, 4].contains(nth));
    busy.map(|(_, ticks)| ticks).sum::<u64>() * 10_000
}

/// Returns the resident memory of a process.
pub(crate) fn rss_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let rss = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    rss.context("no VmRSS")
}

/// Raises the limit of open files to the maximum for this process.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("no more open files are allowed")
}

/// The only place of this tool that reads a clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer's tool measures real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The only place of this tool that reads the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer's tool asks where it runs"
)]
pub(crate) fn env_var(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn display_name(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let mut name = program.to_string_lossy().into_owned();
    for arg in command.get_args().take(4) {
        name.push(' ');
        name.push_str(&arg.to_string_lossy());
    }
    name
}

fn last_lines(words: &str) -> String {
    let lines: Vec<&str> = words
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let from = lines.len().saturating_sub(TAIL_LINES_MAX);
    lines.get(from..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_program_output_is_in_error() {
        let error =
            run_captured(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn last_lines_keeps_only_tail() {
        let words: String = (0..40).map(|n| format!("line {n}\n\n")).collect();
        let kept = last_lines(&words);
        assert!(
            kept.starts_with("line 25\n") && kept.ends_with("line 39"),
            "{kept}"
        );
    }
}
