//! Running other programs, and the few things only the operating system knows.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// How much of a failed program's words an error repeats.
const TAIL_LINES_MAX: usize = 15;

/// How often is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(25);

/// Runs a program with its output on our terminal; an unsuccessful end is an error.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let name = name(command);
    let status = command
        .status()
        .with_context(|| format!("could not start `{name}`"))?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// Asks a program to end, and insists after so many seconds.
pub(crate) fn end(child: &mut Child, seconds_max: u64) {
    let _ = quiet(Command::new("kill").arg(child.id().to_string()));
    let start = now();
    while start.elapsed().as_secs() < seconds_max {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(LOOK);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Runs a program quietly and gives its standard output; the error holds its last words.
pub(crate) fn quiet(command: &mut Command) -> Result<String> {
    let name = name(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not start `{name}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let words = format!("{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    bail!("`{name}` failed ({})\n{}", output.status, tail(&words))
}

/// `quiet` in a directory.
pub(crate) fn output(dir: &Path, program: &str, args: &[&str]) -> Result<String> {
    quiet(Command::new(program).args(args).current_dir(dir))
}

/// The first line of standard output; the rest is read and dropped, so that nothing blocks.
pub(crate) fn ready_line(child: &mut Child, seconds_max: u64) -> Result<String> {
    let stdout = child.stdout.take().context("no standard output")?;
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let _ = reader.read_line(&mut line);
        // Nobody waits any more when the deadline has passed.
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

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")
        .context("no free port")?
        .local_addr()?
        .port())
}

/// Processor time of all threads of a process.
pub(crate) fn cpu_us(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let spent = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    spent.sum::<u64>() / 1_000
}

/// Processor time that a process used, with that of threads that are gone, in steps of the kernel's
/// hundredth of a second.
pub(crate) fn cpu_whole_us(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program stands in brackets, and may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks = ticks.filter_map(|tick| tick.parse::<u64>().ok());
    ticks.sum::<u64>() * 10_000
}

/// Processor time that everybody on this machine used since it started, in steps of the kernel's
/// hundredth of a second.
pub(crate) fn busy_us() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks = cpu.unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = ticks.filter_map(|tick| tick.parse().ok()).collect();
    // User, nice, system, then idle and waiting, then interrupts; guests are in user already.
    let busy = ticks.iter().take(7).enumerate();
    let busy = busy.filter(|(nth, _)| ![3, 4].contains(nth));
    busy.map(|(_, ticks)| ticks).sum::<u64>() * 10_000
}

/// Resident memory of a process.
pub(crate) fn rss_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let rss = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    rss.context("no VmRSS")
}

/// Lets this process have as many open files as the machine allows.
pub(crate) fn raise_descriptor_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("no more open files are allowed")
}

/// The one place of this tool that reads a clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer's tool measures real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The one place of this tool that reads the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "a developer's tool asks where it runs"
)]
pub(crate) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn name(command: &Command) -> String {
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

fn tail(words: &str) -> String {
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
    fn a_failed_program_leaves_its_last_words_in_the_error() {
        let error = quiet(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }

    #[test]
    fn the_tail_keeps_the_last_lines_only() {
        let words: String = (0..40).map(|n| format!("line {n}\n\n")).collect();
        let kept = tail(&words);
        assert!(
            kept.starts_with("line 25\n") && kept.ends_with("line 39"),
            "{kept}"
        );
    }
}
