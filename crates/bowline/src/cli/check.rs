//! `check`: validates the config file and prints a summary.

use std::time::Duration;

use bowline_core::lane::{KEY_META, KeyChannel};
use bowline_core::time::to_millis;
use serde_json::json;

use super::failure::{CliExit, CliFailure};
use super::table::{format_count, format_duration, format_table};
use super::{CommandContext, clean, trust};
use bowline_config::secrets::SecretVault;
use bowline_config::state;
use bowline_config::{Config, ConfigWarning};

pub(super) fn run(context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env);
    let config = match directory {
        Ok(directory) => {
            let vault = SecretVault::open(&directory, &context.env);
            trust::load_config(context, &directory, &vault)?
        }
        // Without a state directory no secret is set and no directory is trusted.
        Err(_) => bowline_config::load_config(context.config_path(), &context.env)?,
    };
    let path = config
        .path
        .as_ref()
        .map(|path| path.display().to_string())
        .unwrap_or_default();
    for warning in &config.warnings {
        context
            .out
            .write_warning(&clean::escape_line(&format_warning(warning, &path)));
    }
    for broken in &config.broken_servers {
        let message = format!(
            "server `{}` cannot run here: {}",
            broken.name, broken.reason
        );
        context.out.write_warning(&clean::escape_line(&message));
    }
    context
        .out
        .write_result(&summary_json(&config, &path), |out| {
            let servers = format_count(config.servers.len() as u64, "server");
            out.write_line(&format!("{path} is valid: {servers}"))?;
            if config.servers.is_empty() {
                return Ok(());
            }
            let rows: Vec<_> = config
                .servers
                .iter()
                .map(|server| {
                    let start = if server.lazy {
                        "at the first call"
                    } else {
                        "at once"
                    };
                    [
                        server.name.to_string(),
                        start.to_owned(),
                        server.upstream.describe(),
                    ]
                })
                .collect();
            out.write_line(&format_table(
                ["SERVER", "STARTS", "COMMAND OR ADDRESS"],
                &rows,
            ))?;
            let queued: Vec<_> = list_queued_tools(&config)
                .map(QueuedTool::into_row)
                .collect();
            if queued.is_empty() {
                return Ok(());
            }
            out.write_line("")?;
            out.write_line(&format_table(["QUEUED", "FOR", "KEY IN"], &queued))
        })?;
    Ok(CliExit::Ok)
}

/// A tool with queueing enabled.
struct QueuedTool<'a> {
    server: &'a str,
    tool: &'a str,
    keep: Duration,
    channel: &'a KeyChannel,
}

fn list_queued_tools(config: &Config) -> impl Iterator<Item = QueuedTool<'_>> {
    config.servers.iter().flat_map(|server| {
        server.tools.iter().filter_map(|(tool, rule)| {
            Some(QueuedTool {
                server: &server.name,
                tool,
                keep: rule.queue?,
                channel: &rule.idempotency,
            })
        })
    })
}

impl QueuedTool<'_> {
    fn into_row(self) -> [String; 3] {
        let channel = match self.channel {
            KeyChannel::None => "nothing (idempotent)".to_owned(),
            KeyChannel::Argument(name) => format!("argument {name}"),
            KeyChannel::Header(name) => format!("header {name}"),
            KeyChannel::Meta => format!("_meta {KEY_META}"),
        };
        [
            clean::escape_line(&format!("{}.{}", self.server, self.tool)).into_owned(),
            format_duration(to_millis(self.keep)),
            clean::escape_line(&channel).into_owned(),
        ]
    }

    fn into_json(self) -> serde_json::Value {
        let (channel, name) = match self.channel {
            KeyChannel::None => ("none", None),
            KeyChannel::Argument(name) => ("argument", Some(name)),
            KeyChannel::Header(name) => ("header", Some(name)),
            KeyChannel::Meta => ("meta", None),
        };
        json!({
            "server": self.server,
            "tool": self.tool,
            "keep_ms": to_millis(self.keep),
            "channel": channel,
            "name": name,
        })
    }
}

fn format_warning(warning: &ConfigWarning, path: &str) -> String {
    match warning.position {
        Some(position) => format!(
            "{} ({path}:{}:{})",
            warning.message, position.line, position.column
        ),
        None => warning.message.clone(),
    }
}

fn summary_json(config: &Config, path: &str) -> serde_json::Value {
    let servers: Vec<_> = config
        .servers
        .iter()
        .map(|server| {
            json!({
                "name": &*server.name,
                "command": server.upstream.describe(),
                "lazy": server.lazy,
            })
        })
        .collect();
    let broken: Vec<_> = config
        .broken_servers
        .iter()
        .map(|broken| json!({"name": &*broken.name, "reason": broken.reason}))
        .collect();
    let warnings: Vec<_> = config
        .warnings
        .iter()
        .map(|warning| {
            let (line, column) = (
                warning.position.map(|at| at.line),
                warning.position.map(|at| at.column),
            );
            json!({"message": warning.message, "line": line, "column": column})
        })
        .collect();
    let queued: Vec<_> = list_queued_tools(config)
        .map(QueuedTool::into_json)
        .collect();
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    json!({
        "v": 1, "path": path, "listen": listen, "servers": servers, "broken": broken,
        "warnings": warnings, "queued": queued, "journal": config.journal.as_str(),
    })
}
