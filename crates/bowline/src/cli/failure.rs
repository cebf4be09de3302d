//! Failures of commands, for people, for programs and as exit codes.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use bowline_config::state;

/// Exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CliExit {
    /// Success.
    Ok,
    /// An unexpected failure.
    Unexpected,
    /// Wrong arguments or config.
    Usage,
    /// Missing or refused credential.
    Auth,
    /// No response, or a late one.
    Unreachable,
    /// The tool ran and reported an error.
    Tool,
    /// Denied by policy.
    Denied,
    /// The call is queued, without a result yet.
    Queued,
}

impl From<CliExit> for ExitCode {
    fn from(exit: CliExit) -> Self {
        Self::from(match exit {
            CliExit::Ok => 0,
            CliExit::Unexpected => 1,
            CliExit::Usage => 2,
            CliExit::Auth => 3,
            CliExit::Unreachable => 4,
            CliExit::Tool => 5,
            CliExit::Denied => 6,
            CliExit::Queued => 7,
        })
    }
}

/// A failed command.
#[derive(Clone, Debug, PartialEq)]
pub struct CliFailure {
    /// The exit status.
    pub exit: CliExit,
    /// Error code for programs.
    pub code: String,
    /// One clause for people.
    pub message: String,
    /// Helpful lines: suggestions and commands that fix the problem.
    pub hints: Vec<String>,
    /// Further members of the JSON form.
    pub details: Map<String, Value>,
    /// Longer text for people, printed instead of the message.
    pub report: Option<Box<str>>,
}

impl CliFailure {
    /// Creates a failure without hints.
    pub fn new(exit: CliExit, code: &str, message: impl Into<String>) -> Self {
        Self {
            exit,
            code: code.to_owned(),
            message: message.into(),
            hints: Vec::new(),
            details: Map::new(),
            report: None,
        }
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Creates a usage failure.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(CliExit::Usage, "usage", message)
    }

    /// Creates an unexpected failure.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Self::new(CliExit::Unexpected, "unexpected", message)
    }

    /// Formats the failure as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut error = Map::new();
        error.insert("code".into(), self.code.clone().into());
        error.insert("message".into(), self.message.clone().into());
        if !self.hints.is_empty() {
            error.insert("hint".into(), self.hints.join("\n").into());
        }
        error.extend(self.details.clone());
        json!({ "error": error }).to_string()
    }
}

// A closed stdout is no failure, and nothing can be printed.
impl From<std::io::Error> for CliFailure {
    fn from(error: std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::BrokenPipe => CliExit::Ok,
            _ => CliExit::Unexpected,
        };
        Self::new(exit, "output", format!("cannot write the result: {error}"))
    }
}

impl From<bowline_config::ConfigError> for CliFailure {
    fn from(error: bowline_config::ConfigError) -> Self {
        let mut failure = Self::new(CliExit::Usage, "config", error.to_string());
        failure.report = Some(error.report().into());
        if let bowline_config::ConfigError::Invalid { path, .. } = &error {
            let path = path.display().to_string();
            failure.details.insert("path".into(), path.into());
            failure
                .details
                .insert("problems".into(), error.problems_json());
        }
        failure
    }
}

impl From<state::StateError> for CliFailure {
    fn from(error: state::StateError) -> Self {
        let (exit, code) = match &error {
            state::StateError::Locked { .. } => (CliExit::Unexpected, "already_running"),
            state::StateError::Exposed { .. }
            | state::StateError::Foreign(_)
            | state::StateError::Symlink(_) => (CliExit::Auth, "state_exposed"),
            _ => (CliExit::Unexpected, "state"),
        };
        let mut failure = Self::new(exit, code, error.to_string());
        if let Some(cause) = std::error::Error::source(&error) {
            failure.hints.push(format!("cause: {cause}"));
        }
        failure
            .hints
            .extend(error.suggest_fix().map(|fix| format!("fix: {fix}")));
        failure
    }
}

/// Returns the config hint that makes a gateway accept the host of `url`. A gateway refuses an
/// upgrade with 403 only for an unknown `Host`.
pub(crate) fn gateway_name_hint(url: &str) -> String {
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or("NAME");
    format!("where the gateway is configured: [gateway] names = [\"{host}\"]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_json_is_one_line() {
        let failure = CliFailure::usage("no\nway").with_hint("a").with_hint("b");
        assert_eq!(
            failure.to_json(),
            r#"{"error":{"code":"usage","hint":"a\nb","message":"no\nway"}}"#
        );
    }

    #[test]
    fn config_failure_lists_positions() {
        let error = bowline_config::parse_config(
            "[x]\n",
            "b.toml".as_ref(),
            &bowline_config::EnvVars::default(),
        );
        let failure = CliFailure::from(error.unwrap_err());
        assert_eq!(failure.exit, CliExit::Usage);
        assert_eq!(failure.details["problems"][0]["line"], 1);
        assert_eq!(failure.details["problems"][0]["column"], 2);
        assert!(
            failure
                .report
                .unwrap()
                .starts_with("error[config]: unknown key `x`")
        );
    }

    #[test]
    fn broken_pipe_is_no_failure() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(CliFailure::from(gone).exit, CliExit::Ok);
    }
}
