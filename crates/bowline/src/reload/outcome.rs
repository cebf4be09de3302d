//! The outcome of a reload: a report of what changed, or why the file is refused.

use std::path::Path;
use std::sync::Arc;

use bowline_host::Applied;
use serde_json::{Value, json};

use crate::config::{self, Broken};

/// What a reload came to.
#[derive(Debug)]
pub enum Outcome {
    /// The file is in force.
    Applied(Report),
    /// Nothing of the file is in force.
    Refused(Refusal),
}

/// What another configuration changed.
#[derive(Debug)]
pub struct Report {
    /// What became of the servers.
    pub applied: Applied,
    /// Whether somebody may do something else now.
    pub policy: Standing,
    /// Whether other executors are dialled now.
    pub executors: Standing,
    /// Servers that this machine cannot run.
    pub broken: Vec<Broken>,
    /// What should be looked at.
    pub warnings: Vec<String>,
    /// Keys that say something else now, which counts from the next start of the gateway.
    pub needs_restart: Vec<&'static str>,
    /// From the order to the new servers.
    pub took_ms: u64,
}

/// Whether something is the same as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Same,
    /// It is something else now.
    Changed,
}

impl Standing {
    /// Takes what is new, and says whether it is something else.
    pub(super) fn of<T: PartialEq + Clone>(known: &mut T, new: &T) -> Self {
        if known == new {
            return Self::Same;
        }
        known.clone_from(new);
        Self::Changed
    }
}

/// Why a configuration is not in force.
#[derive(Debug)]
pub struct Refusal {
    /// One clause.
    pub message: String,
    /// What a person should read, with the lines of the file that are at fault.
    pub report: String,
    /// The same for programs.
    pub problems: Value,
    /// The same without any line of the file, which may hold secrets.
    pub summary: Arc<str>,
}

impl Refusal {
    pub(super) fn of(error: &config::Error) -> Self {
        Self {
            message: error.to_string(),
            report: error.report(),
            problems: error.problems(),
            summary: error.summary().into(),
        }
    }

    pub(super) fn cut_short(error: &tokio::task::JoinError) -> Self {
        Self::plain(&format!("the config file was not read to its end: {error}"))
    }

    pub(super) fn untrusted(directory: &Path) -> Self {
        let directory = directory.display();
        Self::plain(&format!(
            "the config file changed since its directory was trusted; look at it, then run: \
             bowline trust {directory} && bowline reload"
        ))
    }

    pub(super) fn plain(message: &str) -> Self {
        Self {
            report: format!("error[config]: {message}"),
            problems: json!([]),
            summary: message.into(),
            message: message.to_owned(),
        }
    }
}

impl Report {
    /// Returns what a person reads: one line for each server that is not as it was.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let Applied {
            added,
            changed,
            removed,
            kept: _,
            // The names of a file are server names already.
            clashes: _,
        } = &self.applied;
        let mut lines: Vec<_> = added.iter().map(|name| format!("  + {name}")).collect();
        lines.extend(
            changed
                .iter()
                .map(|changed| format!("  ~ {}  {}", changed.server, changed.keys.join(", "))),
        );
        lines.extend(removed.iter().map(|name| format!("  - {name}")));
        let others = [("policy", self.policy), ("executors", self.executors)];
        let others = others.iter().filter(|(_, is)| *is == Standing::Changed);
        lines.extend(others.map(|(key, _)| format!("  ~ {key}")));
        if lines.is_empty() {
            lines.push("  nothing changed".to_owned());
        }
        lines.extend(
            self.needs_restart
                .iter()
                .map(|key| format!("  ! {key} changed: it counts from the next `bowline up`")),
        );
        lines
    }

    /// Returns the same for programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let changed = self.applied.changed.iter();
        let changed = changed.map(|one| json!({"server": one.server, "keys": one.keys}));
        let broken = self.broken.iter();
        let broken = broken.map(|one| json!({"name": one.name, "reason": one.reason}));
        json!({
            "v": 1,
            "added": self.applied.added,
            "changed": changed.collect::<Vec<_>>(),
            "removed": self.applied.removed,
            "policy_changed": self.policy == Standing::Changed,
            "executors_changed": self.executors == Standing::Changed,
            "kept": self.applied.kept.len(),
            "broken": broken.collect::<Vec<_>>(),
            "warnings": self.warnings,
            "needs_restart": self.needs_restart,
            "took_ms": self.took_ms,
            "lines": self.lines(),
        })
    }
}
