//! The keys of a server's sandbox: `sandbox`, `fs`, `net`.

use bowline_link::sandbox::{Level, Net};

use super::reader::Reader;
use super::server::{Server, choice};
use crate::config::frame::Problem;
use crate::config::tree::{Entry, Node, Value};

/// Every port.
const ANY: &str = "*";

/// Takes one of the keys.
pub(super) fn fill(reader: &mut Reader, server: &mut Server, entry: &Entry) {
    server.sandbox_span = Some(entry.span.clone());
    match entry.key.as_str() {
        "sandbox" => {
            let all = [Level::Off, Level::Default, Level::Strict];
            let choices = all.map(|level| (level.as_str(), level));
            server.sandbox = choice(reader, entry, &choices).unwrap_or_default();
        }
        "fs" => server.fs = reader.texts(entry),
        _ => server.net = net(reader, entry),
    }
}

fn net(reader: &mut Reader, entry: &Entry) -> Net {
    let Value::List(items) = &entry.node.value else {
        reader.wrong_kind(entry, "a list of ports");
        return Net::default();
    };
    let is_any = |node: &Node| matches!(&node.value, Value::Text(text) if text == ANY);
    if items.iter().any(is_any) {
        return Net::Any;
    }
    let mut ports = Vec::with_capacity(items.len());
    for item in items {
        match port(&item.value) {
            Some(port) => ports.push(port),
            None => {
                let label = "expected a port, \"HOST:PORT\" or \"*\"";
                let problem = Problem::new(item.span.clone(), "`net` names no port here", label);
                let help = "rules are by port: every host can be reached at it";
                reader.problems.push(problem.help(help));
            }
        }
    }
    Net::Ports(ports)
}

/// Reads `443`, `"443"` or `"api.example.com:443"`.
fn port(value: &Value) -> Option<u16> {
    let port = match value {
        Value::Integer(port) => u16::try_from(*port).ok()?,
        Value::Text(text) => {
            let port = text
                .rsplit_once(':')
                .map_or(text.as_str(), |(_, port)| port);
            port.parse().ok()?
        }
        _ => return None,
    };
    (port != 0).then_some(port)
}
