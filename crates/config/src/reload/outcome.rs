//! The outcome of a reload: a report of the changes, or the reason for a refusal.

use std::path::Path;
use std::sync::Arc;

use bowline_api::VERSION;
use bowline_api::reload::{ChangedServerEntry, ReloadResponse};
use bowline_api::servers::BrokenServer;
use bowline_host::ApplyReport;
use serde_json::{Value, json};

/// Result of a reload.
#[derive(Debug)]
pub enum ReloadOutcome {
    /// The file is in force.
    Applied(ReloadReport),
    /// The file is refused, and the previous configuration stays in force.
    Refused(ReloadRefusal),
}

/// Changes made by a new configuration.
#[derive(Debug)]
pub struct ReloadReport {
    /// Changes of the servers.
    pub applied: ApplyReport,
    /// Change of the policy.
    pub policy: ChangeState,
    /// Change of the dialled executors.
    pub executors: ChangeState,
    /// Servers unable to run on this machine.
    pub broken: Vec<BrokenServer>,
    /// Warnings about the configuration.
    pub warnings: Vec<String>,
    /// Changed keys that take effect at the next start of the gateway.
    pub needs_restart: Vec<&'static str>,
    /// Time from the request to the new servers.
    pub took_ms: u64,
}

/// Result of comparing an old and a new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeState {
    /// The values are equal.
    Same,
    /// The values differ.
    Changed,
}

impl ChangeState {
    /// Stores the new value and compares it with the old one.
    pub(super) fn update_value<T: PartialEq + Clone>(current: &mut T, new: &T) -> Self {
        if current == new {
            return Self::Same;
        }
        current.clone_from(new);
        Self::Changed
    }
}

/// Reason why a configuration is refused.
#[derive(Debug)]
pub struct ReloadRefusal {
    /// One clause.
    pub message: String,
    /// Full text for people, including the faulty lines of the file.
    pub report: String,
    /// The same problems as JSON for programs.
    pub problems: Value,
    /// Text without any line of the file, since lines may hold secrets.
    pub summary: Arc<str>,
}

impl ReloadRefusal {
    pub(super) fn from_config_error(error: &crate::ConfigError) -> Self {
        Self {
            message: error.to_string(),
            report: error.report(),
            problems: error.problems_json(),
            summary: error.summary().into(),
        }
    }

    pub(super) fn from_join_error(error: &tokio::task::JoinError) -> Self {
        Self::from_message(&format!("the config file was not read to its end: {error}"))
    }

    pub(super) fn untrusted_directory(directory: &Path) -> Self {
        let directory = directory.display();
        Self::from_message(&format!(
            "the config file changed since its directory was trusted; look at it, then run: \
             bowline trust {directory} && bowline reload"
        ))
    }

    pub(super) fn from_message(message: &str) -> Self {
        Self {
            report: format!("error[config]: {message}"),
            problems: json!([]),
            summary: message.into(),
            message: message.to_owned(),
        }
    }
}

impl ReloadReport {
    /// Returns the text for people: one line for each changed server.
    #[must_use]
    pub fn summary_lines(&self) -> Vec<String> {
        let ApplyReport {
            added,
            changed,
            removed,
            kept: _,
            // The config parser already rejects clashing server names.
            clashes: _,
            // A gateway is built with every feature.
            unsupported: _,
        } = &self.applied;
        let mut lines: Vec<_> = added.iter().map(|name| format!("  + {name}")).collect();
        lines.extend(
            changed
                .iter()
                .map(|changed| format!("  ~ {}  {}", changed.server, changed.keys.join(", "))),
        );
        lines.extend(removed.iter().map(|name| format!("  - {name}")));
        let sections = [("policy", self.policy), ("executors", self.executors)];
        let sections = sections
            .iter()
            .filter(|(_, state)| *state == ChangeState::Changed);
        lines.extend(sections.map(|(key, _)| format!("  ~ {key}")));
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

    /// Returns the report in the API format.
    #[must_use]
    pub fn to_response(&self) -> ReloadResponse {
        let changed = self.applied.changed.iter().map(|one| ChangedServerEntry {
            server: Arc::clone(&one.server),
            keys: one.keys.iter().copied().map(Into::into).collect(),
        });
        let needs_restart = self.needs_restart.iter().copied();
        ReloadResponse {
            v: VERSION,
            added: self.applied.added.clone(),
            changed: changed.collect(),
            removed: self.applied.removed.clone(),
            policy_changed: self.policy == ChangeState::Changed,
            executors_changed: self.executors == ChangeState::Changed,
            kept: self.applied.kept.len(),
            broken: self.broken.clone(),
            warnings: self.warnings.clone(),
            needs_restart: needs_restart.map(Into::into).collect(),
            took_ms: self.took_ms,
            lines: self.summary_lines(),
        }
    }
}
