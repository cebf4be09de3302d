//! `check`: validates the config file and shows what it comes to.

use std::time::Duration;

use bowline_core::lane::{Channel, KEY_META};
use bowline_core::time::millis;
use serde_json::json;

use super::failure::{Exit, Failure};
use super::table::{count, duration, table};
use super::{Context, clean, trust};
use crate::config::{self, Config, Warning};
use crate::secrets::Vault;
use crate::state;

pub(super) fn run(context: &mut Context) -> Result<Exit, Failure> {
    let directory = state::locate(context.global.state.as_deref(), &context.env);
    let config = match directory {
        Ok(directory) => {
            let vault = Vault::of(&directory, &context.env);
            trust::load(context, &directory, &vault)?
        }
        // Then no secret is set and nothing is trusted.
        Err(_) => config::load(context.config(), &context.env)?,
    };
    let path = config
        .path
        .as_ref()
        .map(|path| path.display().to_string())
        .unwrap_or_default();
    for warning in &config.warnings {
        context.out.warning(&clean::line(&located(warning, &path)));
    }
    for broken in &config.broken {
        let message = format!(
            "server `{}` cannot run here: {}",
            broken.name, broken.reason
        );
        context.out.warning(&clean::line(&message));
    }
    context.out.result(&summary(&config, &path), |out| {
        let servers = count(config.servers.len() as u64, "server");
        out.line(&format!("{path} is valid: {servers}"))?;
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
                    server.reach.shown(),
                ]
            })
            .collect();
        out.line(&table(["SERVER", "STARTS", "COMMAND OR ADDRESS"], &rows))?;
        let queued: Vec<_> = queued(&config).map(Queued::row).collect();
        if queued.is_empty() {
            return Ok(());
        }
        out.line("")?;
        out.line(&table(["QUEUED", "FOR", "KEY IN"], &queued))
    })?;
    Ok(Exit::Ok)
}

/// A tool whose calls are kept while its server is away.
struct Queued<'a> {
    server: &'a str,
    tool: &'a str,
    keep: Duration,
    channel: &'a Channel,
}

fn queued(config: &Config) -> impl Iterator<Item = Queued<'_>> {
    config.servers.iter().flat_map(|server| {
        server.tools.iter().filter_map(|(tool, rule)| {
            Some(Queued {
                server: &server.name,
                tool,
                keep: rule.queue?,
                channel: &rule.idempotency,
            })
        })
    })
}

impl Queued<'_> {
    fn row(self) -> [String; 3] {
        let channel = match self.channel {
            Channel::None => "nothing (idempotent)".to_owned(),
            Channel::Argument(name) => format!("argument {name}"),
            Channel::Header(name) => format!("header {name}"),
            Channel::Meta => format!("_meta {KEY_META}"),
        };
        [
            clean::line(&format!("{}.{}", self.server, self.tool)).into_owned(),
            duration(millis(self.keep)),
            clean::line(&channel).into_owned(),
        ]
    }

    fn json(self) -> serde_json::Value {
        let (channel, name) = match self.channel {
            Channel::None => ("none", None),
            Channel::Argument(name) => ("argument", Some(name)),
            Channel::Header(name) => ("header", Some(name)),
            Channel::Meta => ("meta", None),
        };
        json!({
            "server": self.server,
            "tool": self.tool,
            "keep_ms": millis(self.keep),
            "channel": channel,
            "name": name,
        })
    }
}

fn located(warning: &Warning, path: &str) -> String {
    match warning.place {
        Some(place) => format!(
            "{} ({path}:{}:{})",
            warning.message, place.line, place.column
        ),
        None => warning.message.clone(),
    }
}

fn summary(config: &Config, path: &str) -> serde_json::Value {
    let servers: Vec<_> = config
        .servers
        .iter()
        .map(|server| {
            json!({
                "name": &*server.name,
                "command": server.reach.shown(),
                "lazy": server.lazy,
            })
        })
        .collect();
    let broken: Vec<_> = config
        .broken
        .iter()
        .map(|broken| json!({"name": &*broken.name, "reason": broken.reason}))
        .collect();
    let warnings: Vec<_> = config
        .warnings
        .iter()
        .map(|warning| {
            let (line, column) = (
                warning.place.map(|at| at.line),
                warning.place.map(|at| at.column),
            );
            json!({"message": warning.message, "line": line, "column": column})
        })
        .collect();
    let queued: Vec<_> = queued(config).map(Queued::json).collect();
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    json!({
        "v": 1, "path": path, "listen": listen, "servers": servers, "broken": broken,
        "warnings": warnings, "queued": queued, "journal": config.journal.as_str(),
    })
}
