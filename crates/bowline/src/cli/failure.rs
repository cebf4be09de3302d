//! Why a command did not do what was asked, for people, for programs and as an exit code.

use std::process::ExitCode;

use serde_json::{Map, Value, json};

use crate::{config, state};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// As asked.
    Ok,
    /// Nobody foresaw this.
    Unexpected,
    /// The arguments or the config are wrong.
    Usage,
    /// The credential is missing or not accepted.
    Auth,
    /// Nobody answers, or not in time.
    Unreachable,
    /// The tool ran and says that it failed.
    Tool,
    /// Policy says no.
    Denied,
    /// The call is stored and not answered yet.
    Queued,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Ok => 0,
            Exit::Unexpected => 1,
            Exit::Usage => 2,
            Exit::Auth => 3,
            Exit::Unreachable => 4,
            Exit::Tool => 5,
            Exit::Denied => 6,
            Exit::Queued => 7,
        })
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What the process says to its parent.
    pub exit: Exit,
    /// A word for programs.
    pub code: String,
    /// One clause for people.
    pub message: String,
    /// Lines that help: what was meant, which command mends it.
    pub hints: Vec<String>,
    /// Further members of the JSON form.
    pub details: Map<String, Value>,
    /// What people read instead, when it is more than a clause.
    pub report: Option<Box<str>>,
}

impl Failure {
    /// A failure with nothing to add.
    pub fn new(exit: Exit, code: &str, message: impl Into<String>) -> Self {
        Self {
            exit,
            code: code.to_owned(),
            message: message.into(),
            hints: Vec::new(),
            details: Map::new(),
            report: None,
        }
    }

    /// The same with one more line of help.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The arguments are wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", message)
    }

    /// Something failed that is nobody's mistake.
    pub fn unexpected(message: impl Into<String>) -> Self {
        Self::new(Exit::Unexpected, "unexpected", message)
    }

    /// The one line that programs read.
    #[must_use]
    pub fn json(&self) -> String {
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

// A reader that went away is no failure of ours, and nobody is left to be told.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::BrokenPipe => Exit::Ok,
            _ => Exit::Unexpected,
        };
        Self::new(exit, "output", format!("cannot write the result: {error}"))
    }
}

impl From<config::Error> for Failure {
    fn from(error: config::Error) -> Self {
        let mut failure = Self::new(Exit::Usage, "config", error.to_string());
        failure.report = Some(error.report().into());
        if let config::Error::Invalid { path, .. } = &error {
            let path = path.display().to_string();
            failure.details.insert("path".into(), path.into());
            failure.details.insert("problems".into(), error.problems());
        }
        failure
    }
}

impl From<state::Error> for Failure {
    fn from(error: state::Error) -> Self {
        let (exit, code) = match &error {
            state::Error::Locked { .. } => (Exit::Unexpected, "already_running"),
            state::Error::Exposed { .. } | state::Error::Foreign(_) | state::Error::Symlink(_) => {
                (Exit::Auth, "state_exposed")
            }
            _ => (Exit::Unexpected, "state"),
        };
        let mut failure = Self::new(exit, code, error.to_string());
        if let Some(cause) = std::error::Error::source(&error) {
            failure.hints.push(format!("cause: {cause}"));
        }
        failure
            .hints
            .extend(error.fix().map(|fix| format!("fix: {fix}")));
        failure
    }
}

/// Says how a gateway is made to answer to the host of `url`: it refuses the upgrade of a
/// connection with 403 only where `Host` is none of its names.
pub(crate) fn name_gateway(url: &str) -> String {
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or("NAME");
    format!("where the gateway is configured: [gateway] names = [\"{host}\"]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_is_one_line_with_code_and_message() {
        let failure = Failure::usage("no\nway").hint("a").hint("b");
        assert_eq!(
            failure.json(),
            r#"{"error":{"code":"usage","hint":"a\nb","message":"no\nway"}}"#
        );
    }

    #[test]
    fn a_config_failure_lists_its_problems_with_places() {
        let error = config::parse("[x]\n", "b.toml".as_ref(), &config::Env::default());
        let failure = Failure::from(error.unwrap_err());
        assert_eq!(failure.exit, Exit::Usage);
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
    fn a_reader_that_went_away_is_no_failure() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::from(gone).exit, Exit::Ok);
    }
}
