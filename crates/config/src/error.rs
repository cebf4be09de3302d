//! Errors of loading a config.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::config_problem::{ConfigProblem, FilePosition, position_at};

/// Maximum problems named in a one-line summary.
const SUMMARY_PROBLEMS_MAX: usize = 3;

/// Reason why no config was loaded.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// No path was given, and no usual location holds a file.
    #[error("no config file was found")]
    NotFound {
        /// The searched locations, in order.
        searched: Vec<PathBuf>,
    },
    /// The file cannot be read.
    #[error("config file `{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is too long or no UTF-8.
    #[error("config file `{path}` is not a text of at most 1 MiB")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The file is world-writable, so any user could choose the programs to start.
    #[error("config file `{path}` can be written by everyone")]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The content of the file is invalid.
    #[error("config file `{path}` has {} problem(s)", problems.len())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The text, for code frames.
        text: String,
        /// All problems, in file order.
        problems: Vec<ConfigProblem>,
    },
}

// The text of the file may hold secrets.
impl std::fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ConfigError")
            .field(&self.to_string())
            .finish()
    }
}

impl ConfigError {
    /// Returns all problems as JSON.
    #[must_use]
    pub fn problems_json(&self) -> Value {
        let Self::Invalid { text, problems, .. } = self else {
            return json!([]);
        };
        let problems = problems.iter().map(|problem| {
            let position = position_at(text, problem.span.start);
            json!({
                "line": position.line, "column": position.column, "message": problem.message,
                "label": problem.label, "help": problem.help,
            })
        });
        problems.collect()
    }

    /// Summarizes the problems without quoting the file, which may hold secrets.
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
        let lines = problems.iter().take(SUMMARY_PROBLEMS_MAX).map(|problem| {
            let FilePosition { line, column } = position_at(text, problem.span.start);
            format!("{}:{line}:{column}: {}", path.display(), problem.message)
        });
        let mut summary = lines.collect::<Vec<_>>().join("; ");
        let more = problems.len().saturating_sub(SUMMARY_PROBLEMS_MAX);
        if more > 0 {
            summary.push_str(&format!("; and {more} more"));
        }
        summary
    }

    /// Returns the report for people, with code frames for invalid content.
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
                    .map(|problem| problem.render_frame(&path, text))
                    .collect();
                frames.join("\n\n")
            }
            Self::NotFound { searched } => {
                let searched_lines: Vec<_> = searched
                    .iter()
                    .map(|path| format!("\n  looked at {}", path.display()))
                    .collect();
                format!("error[config]: {self}{}", searched_lines.concat())
            }
            Self::Read { source, .. } => format!("error[config]: {self}\n  cause: {source}"),
            Self::NotText { .. } => format!("error[config]: {self}"),
            Self::Exposed { path } => {
                format!("error[config]: {self}\n  fix: chmod o-w {}", path.display())
            }
        }
    }
}
