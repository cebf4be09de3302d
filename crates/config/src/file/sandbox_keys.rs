//! The keys of a server's sandbox: `sandbox`, `fs`, `net`.

use bowline_link::sandbox::{NetAccess, SandboxLevel};

use super::server_keys::{ServerKey, ServerSection, parse_choice};
use super::tree_reader::TreeReader;
use crate::config_problem::ConfigProblem;
use crate::tree::{ConfigEntry, ConfigNode, ConfigValue};

/// Matches every port.
const ANY_PORT: &str = "*";

/// Parses a sandbox key.
pub(super) fn parse_sandbox_key(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    key: ServerKey,
    entry: &ConfigEntry,
) {
    server.sandbox_span = Some(entry.span.clone());
    match key {
        ServerKey::Sandbox => {
            let levels = [
                SandboxLevel::Off,
                SandboxLevel::Default,
                SandboxLevel::Strict,
            ];
            let choices = levels.map(|level| (level.as_str(), level));
            server.sandbox = parse_choice(reader, entry, &choices).unwrap_or_default();
        }
        ServerKey::Fs => server.fs = reader.read_texts(entry),
        _ => server.net = parse_net(reader, entry),
    }
}

fn parse_net(reader: &mut TreeReader, entry: &ConfigEntry) -> NetAccess {
    let ConfigValue::List(items) = &entry.node.value else {
        reader.report_wrong_type(entry, "a list of ports");
        return NetAccess::default();
    };
    let is_any =
        |node: &ConfigNode| matches!(&node.value, ConfigValue::Text(text) if text == ANY_PORT);
    if items.iter().any(is_any) {
        return NetAccess::Any;
    }
    let mut ports = Vec::with_capacity(items.len());
    for item in items {
        match parse_port(&item.value) {
            Some(port) => ports.push(port),
            None => {
                let label = "expected a port, \"HOST:PORT\" or \"*\"";
                let problem =
                    ConfigProblem::new(item.span.clone(), "`net` names no port here", label);
                let help = "rules are by port: every host can be reached at it";
                reader.problems.push(problem.with_help(help));
            }
        }
    }
    NetAccess::Ports(ports)
}

/// Parses `443`, `"443"` or `"api.example.com:443"`.
fn parse_port(value: &ConfigValue) -> Option<u16> {
    let port = match value {
        ConfigValue::Integer(port) => u16::try_from(*port).ok()?,
        ConfigValue::Text(text) => {
            let port = text
                .rsplit_once(':')
                .map_or(text.as_str(), |(_, port)| port);
            port.parse().ok()?
        }
        _ => return None,
    };
    (port != 0).then_some(port)
}
