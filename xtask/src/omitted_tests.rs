//! Tests that were left out because a program, a schema or a permission is missing.
//!
//! Such a test passes, and names itself on standard error past the capture of the test harness. The
//! commands that run tests repeat the names at the end, so that nothing passes silently.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    process::{Command, ExitStatus, Stdio},
    thread,
};

use anyhow::{Context, Result};

/// Begin of a line that names a test.
const MARKER: &str = "left out: ";

/// Lines behind [`MARKER`]: the name of a test, and the reason.
pub(crate) type OmittedTests = BTreeSet<String>;

/// Runs test programs, passes standard output to `read_stdout` and standard error on, and returns
/// the tests that were left out.
pub(crate) fn run_tests<T>(
    command: &mut Command,
    read_stdout: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<(T, ExitStatus, OmittedTests)> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("could not start `cargo test`")?;
    let mut stdout = child.stdout.take().context("`cargo test` has no output")?;
    let stderr = child.stderr.take().context("`cargo test` has no errors")?;
    let omitted = thread::spawn(move || pass_on_stderr(stderr));
    let output = read_stdout(&mut stdout)?;
    let status = child.wait().context("wait for `cargo test`")?;
    // The thread ends with the pipe, and the pipe with the last test program.
    let omitted = omitted.join().unwrap_or_default();
    Ok((output, status, omitted))
}

fn pass_on_stderr(stderr: impl Read) -> OmittedTests {
    let lines = BufReader::new(stderr).split(b'\n').map_while(Result::ok);
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    collect_omitted(lines.inspect(|line| eprintln!("{line}")))
}

fn collect_omitted(lines: impl Iterator<Item = String>) -> OmittedTests {
    let omitted = lines.filter_map(|line| Some(line.trim().strip_prefix(MARKER)?.to_owned()));
    omitted.collect()
}

/// Prints the tests that were left out, one on a line.
pub(crate) fn print_omitted(omitted: &OmittedTests) {
    for test in omitted {
        println!("{MARKER}{test}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_tests_are_collected_once() {
        let lines = [
            "left out: b (no b)",
            "  Compiling x",
            "left out: a (no a)",
            "",
        ];
        let lines = lines.iter().chain(&lines).map(|line| (*line).to_owned());
        let omitted: Vec<String> = collect_omitted(lines).into_iter().collect();
        assert_eq!(omitted, ["a (no a)", "b (no b)"]);
    }

    #[test]
    fn stderr_is_read_while_stdout_is() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo 'left out: x (y)' >&2; echo ok; exit 3"]);
        let read = |stdout: &mut dyn Read| Ok(std::io::read_to_string(stdout)?);
        let (output, status, omitted) = run_tests(&mut shell, read).unwrap();
        assert_eq!((output.as_str(), status.code()), ("ok\n", Some(3)));
        assert_eq!(omitted.into_iter().collect::<Vec<_>>(), ["x (y)"]);
    }
}
