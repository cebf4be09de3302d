//! Where everything that a person or a program reads is written: results to stdout, all else
//! to stderr.

use std::io::{self, IsTerminal as _, Write};

use owo_colors::OwoColorize as _;
use serde::Serialize;

use super::clean;
use super::failure::{Exit, Failure};

/// For whom the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// People.
    Human,
    /// Programs.
    Json,
}

/// Both outputs of the process. Colours are written always and taken out where the terminal
/// or `NO_COLOR` does not want them.
pub struct Out {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    format: Format,
    /// Whether what is written to stdout can be drawn over.
    terminal: bool,
}

impl std::fmt::Debug for Out {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Out")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Out {
    /// The outputs of this process.
    #[must_use]
    pub fn process(format: Format) -> Self {
        Self {
            stdout: Box::new(anstream::AutoStream::auto(io::stdout())),
            stderr: Box::new(anstream::AutoStream::auto(io::stderr())),
            format,
            terminal: is_screen(),
        }
    }

    /// Whether what is written to stdout can be drawn over: it is a terminal, and escapes reach it.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// For whom the output is.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes a result in the form that was asked for.
    pub fn result(
        &mut self,
        value: &impl Serialize,
        human: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Human => Ok(human(self)?),
            Format::Json => {
                let text = serde_json::to_string(value)
                    .map_err(|error| Failure::unexpected(error.to_string()))?;
                Ok(self.line(&text)?)
            }
        }
    }

    /// Writes JSON of the gateway as it came, on one line.
    pub fn raw(&mut self, json: &[u8]) -> io::Result<()> {
        // Strings hold no raw line ends, so those that are there only separate.
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

    /// One line, or several, of a result.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.stdout, "{text}")?;
        self.stdout.flush()
    }

    /// One line for people, beside the result.
    pub fn note(&mut self, text: &str) {
        // Whoever closed stderr does not want to know.
        let _written = writeln!(self.stderr, "{text}");
    }

    /// A warning for people.
    pub fn warning(&mut self, text: &str) {
        let label = "warning".yellow();
        self.note(&format!("{label}: {text}"));
    }

    /// Says why the command failed.
    pub fn failure(&mut self, failure: &Failure) {
        if failure.exit == Exit::Ok {
            return;
        }
        if self.format == Format::Json {
            self.note(&failure.json());
            return;
        }
        match &failure.report {
            Some(report) => self.note(report),
            None => {
                let label = format!("error[{}]", clean::line(&failure.code));
                let label = label.red();
                self.note(&format!("{label}: {}", clean::text(&failure.message)));
            }
        }
        for hint in &failure.hints {
            self.note(&format!("  {}", clean::text(hint)));
        }
    }
}

fn is_screen() -> bool {
    let stdout = io::stdout();
    // Where colours are not wanted, nothing is drawn over either: a screen reader reads on.
    let wanted = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
    wanted && stdout.is_terminal()
}

#[cfg(test)]
pub(crate) mod captured {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What was written to one output, without colours.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(crate) fn text(&self) -> String {
            let bytes = self.0.lock().unwrap().clone();
            anstream::adapter::strip_str(&String::from_utf8(bytes).unwrap()).to_string()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An output that can be looked at: `(out, stdout, stderr)`.
    pub(crate) fn out(format: Format) -> (Out, Captured, Captured) {
        let (stdout, stderr) = (Captured::default(), Captured::default());
        let out = Out {
            stdout: Box::new(stdout.clone()),
            stderr: Box::new(stderr.clone()),
            format,
            terminal: false,
        };
        (out, stdout, stderr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_go_to_stdout_and_failures_to_stderr() {
        let (mut out, stdout, stderr) = captured::out(Format::Human);
        out.line("result").unwrap();
        out.failure(&Failure::usage("wrong").hint("try this"));
        assert_eq!(stdout.text(), "result\n");
        assert_eq!(stderr.text(), "error[usage]: wrong\n  try this\n");
    }

    #[test]
    fn a_failure_for_programs_is_one_json_line() {
        let (mut out, stdout, stderr) = captured::out(Format::Json);
        out.failure(&Failure::usage("wrong"));
        assert_eq!(stdout.text(), "");
        assert_eq!(
            stderr.text(),
            "{\"error\":{\"code\":\"usage\",\"message\":\"wrong\"}}\n"
        );
    }

    #[test]
    fn json_of_the_gateway_is_put_on_one_line() {
        let (mut out, stdout, _) = captured::out(Format::Json);
        out.raw(b"{\n \"v\": 1.0\n}\n").unwrap();
        assert_eq!(stdout.text(), "{  \"v\": 1.0 }\n");
    }
}
