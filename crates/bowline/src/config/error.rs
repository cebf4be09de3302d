//! Why there is no config.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::frame::{Place, Problem, place};

/// Problems that are named where there is room for one line.
const SUMMARY_MAX: usize = 3;

/// Why there is no config.
#[derive(thiserror::Error)]
pub enum Error {
    /// No file was named and none stands where one is looked for.
    #[error("no config file was found")]
    NotFound {
        /// Where it was looked for, in order.
        searched: Vec<PathBuf>,
    },
    /// The file cannot be read.
    #[error("config file `{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is longer than a config can be, or is no text.
    #[error("config file `{path}` is not a text of at most 1 MiB")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// Anyone on this machine may change what the gateway starts.
    #[error("config file `{path}` can be written by everyone")]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The file says something that cannot be done.
    #[error("config file `{path}` has {} problem(s)", problems.len())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its text, for the code frames.
        text: String,
        /// Everything that is wrong, in file order.
        problems: Vec<Problem>,
    },
}

// The text of the file may hold secrets.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Error").field(&self.to_string()).finish()
    }
}

impl Error {
    /// Everything that is wrong with the file, for programs.
    #[must_use]
    pub fn problems(&self) -> Value {
        let Self::Invalid { text, problems, .. } = self else {
            return json!([]);
        };
        let problems = problems.iter().map(|problem| {
            let place = place(text, problem.span.start);
            json!({
                "line": place.line, "column": place.column, "message": problem.message,
                "label": problem.label, "help": problem.help,
            })
        });
        problems.collect()
    }

    /// What is wrong, without any line of the file, which may hold secrets.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self::Invalid {
            path,
            text,
            problems,
        } = self
        else {
            return self.to_string();
        };
        let places = problems.iter().take(SUMMARY_MAX).map(|problem| {
            let Place { line, column } = place(text, problem.span.start);
            format!("{}:{line}:{column}: {}", path.display(), problem.message)
        });
        let mut summary = places.collect::<Vec<_>>().join("; ");
        let more = problems.len().saturating_sub(SUMMARY_MAX);
        if more > 0 {
            summary.push_str(&format!("; and {more} more"));
        }
        summary
    }

    /// What a person should read: code frames where there are any.
    #[must_use]
    pub fn report(&self) -> String {
        match self {
            Self::Invalid {
                path,
                text,
                problems,
            } => {
                let path = path.display().to_string();
                let frames: Vec<_> = problems
                    .iter()
                    .map(|problem| problem.frame(&path, text))
                    .collect();
                frames.join("\n\n")
            }
            Self::NotFound { searched } => {
                let tried: Vec<_> = searched
                    .iter()
                    .map(|path| format!("\n  looked at {}", path.display()))
                    .collect();
                format!("error[config]: {self}{}", tried.concat())
            }
            Self::Read { source, .. } => format!("error[config]: {self}\n  cause: {source}"),
            Self::NotText { .. } => format!("error[config]: {self}"),
            Self::Exposed { path } => {
                format!("error[config]: {self}\n  fix: chmod o-w {}", path.display())
            }
        }
    }
}
