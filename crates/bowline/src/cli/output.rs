//! Output of commands: results to stdout, everything else to stderr.

use std::io::{self, IsTerminal as _, Write};

use owo_colors::OwoColorize as _;
use serde::Serialize;

use super::clean;
use super::failure::{CliExit, CliFailure};

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Text for people.
    Human,
    /// JSON for programs.
    Json,
}

/// Stdout and stderr. Colours are always written, and stripped when the terminal or `NO_COLOR`
/// disables them.
pub struct CliOutput {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    format: OutputFormat,
    /// Whether stdout is a terminal that can be redrawn.
    is_terminal: bool,
}

impl std::fmt::Debug for CliOutput {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CliOutput")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl CliOutput {
    /// Creates the outputs of this process.
    #[must_use]
    pub fn for_process(format: OutputFormat) -> Self {
        Self {
            stdout: Box::new(anstream::AutoStream::auto(io::stdout())),
            stderr: Box::new(anstream::AutoStream::auto(io::stderr())),
            format,
            is_terminal: is_redrawable_terminal(),
        }
    }

    /// Returns whether stdout is a terminal that interprets escapes, so it can be redrawn.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Returns the output format.
    #[must_use]
    pub fn format(&self) -> OutputFormat {
        self.format
    }

    /// Writes a result in the chosen format.
    pub fn write_result(
        &mut self,
        value: &impl Serialize,
        human: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> Result<(), CliFailure> {
        match self.format {
            OutputFormat::Human => Ok(human(self)?),
            OutputFormat::Json => {
                let text = serde_json::to_string(value)
                    .map_err(|error| CliFailure::unexpected(error.to_string()))?;
                Ok(self.write_line(&text)?)
            }
        }
    }

    /// Writes JSON of the gateway verbatim on one line.
    pub fn write_raw_json(&mut self, json: &[u8]) -> io::Result<()> {
        // JSON strings hold no raw line ends, so each one is only whitespace.
        let mut flat: Vec<u8> = json
            .iter()
            .map(|byte| {
                if matches!(byte, b'\n' | b'\r') {
                    b' '
                } else {
                    *byte
                }
            })
            .collect();
        flat.truncate(flat.trim_ascii_end().len());
        flat.push(b'\n');
        self.stdout.write_all(&flat)?;
        self.stdout.flush()
    }

    /// Writes a line, or several, of a result.
    pub fn write_line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.stdout, "{text}")?;
        self.stdout.flush()
    }

    /// Writes a line for people to stderr.
    pub fn write_note(&mut self, text: &str) {
        // A closed stderr is no error.
        let _written = writeln!(self.stderr, "{text}");
    }

    /// Writes a warning for people.
    pub fn write_warning(&mut self, text: &str) {
        let label = "warning".yellow();
        self.write_note(&format!("{label}: {text}"));
    }

    /// Writes the reason of a failure.
    pub fn write_failure(&mut self, failure: &CliFailure) {
        if failure.exit == CliExit::Ok {
            return;
        }
        if self.format == OutputFormat::Json {
            self.write_note(&failure.to_json());
            return;
        }
        match &failure.report {
            Some(report) => self.write_note(report),
            None => {
                let label = format!("error[{}]", clean::escape_line(&failure.code));
                let label = label.red();
                self.write_note(&format!(
                    "{label}: {}",
                    clean::escape_text(&failure.message)
                ));
            }
        }
        for hint in &failure.hints {
            self.write_note(&format!("  {}", clean::escape_text(hint)));
        }
    }
}

fn is_redrawable_terminal() -> bool {
    let stdout = io::stdout();
    // Without colours nothing is redrawn either, for screen readers.
    let has_colour = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
    has_colour && stdout.is_terminal()
}

#[cfg(test)]
pub(crate) mod captured {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Captured output without colours.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

    impl CapturedOutput {
        pub(crate) fn text(&self) -> String {
            let bytes = self.0.lock().unwrap().clone();
            anstream::adapter::strip_str(&String::from_utf8(bytes).unwrap()).to_string()
        }
    }

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Creates captured outputs: `(out, stdout, stderr)`.
    pub(crate) fn captured_output(
        format: OutputFormat,
    ) -> (CliOutput, CapturedOutput, CapturedOutput) {
        let (stdout, stderr) = (CapturedOutput::default(), CapturedOutput::default());
        let out = CliOutput {
            stdout: Box::new(stdout.clone()),
            stderr: Box::new(stderr.clone()),
            format,
            is_terminal: false,
        };
        (out, stdout, stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_to_stdout_and_failures_to_stderr() {
        let (mut out, stdout, stderr) = captured::captured_output(OutputFormat::Human);
        out.write_line("result").unwrap();
        out.write_failure(&CliFailure::usage("wrong").with_hint("try this"));
        assert_eq!(stdout.text(), "result\n");
        assert_eq!(stderr.text(), "error[usage]: wrong\n  try this\n");
    }

    #[test]
    fn json_failure_is_one_line() {
        let (mut out, stdout, stderr) = captured::captured_output(OutputFormat::Json);
        out.write_failure(&CliFailure::usage("wrong"));
        assert_eq!(stdout.text(), "");
        assert_eq!(
            stderr.text(),
            "{\"error\":{\"code\":\"usage\",\"message\":\"wrong\"}}\n"
        );
    }

    #[test]
    fn raw_json_is_written_on_one_line() {
        let (mut out, stdout, _) = captured::captured_output(OutputFormat::Json);
        out.write_raw_json(b"{\n \"v\": 1.0\n}\n").unwrap();
        assert_eq!(stdout.text(), "{  \"v\": 1.0 }\n");
    }
}
