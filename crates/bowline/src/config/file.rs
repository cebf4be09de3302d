//! A config file as it was written: every key checked, nothing filled in yet.

mod reader;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use bowline_host::spec::Isolation;
use bowline_link::http::Transport;
use http::HeaderName;

use self::reader::{Keys, Reader};
use super::frame::Problem;
use super::suggest::nearest;
use super::tree::{Entry, Node, Syntax, Value};
use super::{Effect, duration};

/// Most servers in one file.
const SERVERS_MAX: usize = 1024;

const TOP: Keys = Keys {
    built: &["gateway", "servers"],
    planned: &[
        "roles",
        "principals",
        "policy",
        "context",
        "executors",
        "journal",
        "profiles",
        "telemetry",
    ],
};
const GATEWAY: Keys = Keys {
    built: &["listen"],
    planned: &["expose"],
};
const SERVER: Keys = Keys {
    built: &[
        "command",
        "args",
        "env",
        "cwd",
        "inherit_env",
        "url",
        "headers",
        "transport",
        "timeout",
        "start_timeout",
        "lazy",
        "isolation",
        "restart",
        "breaker",
        "tools",
    ],
    planned: &["via", "pin", "idle_stop", "cache", "journal"],
};
const RESTART: Keys = Keys {
    built: &["budget", "window", "backoff"],
    planned: &[],
};
const BREAKER: Keys = Keys {
    built: &["failures", "rest"],
    planned: &[],
};
const TOOL: Keys = Keys {
    built: &["effect"],
    planned: &["idempotency", "queue"],
};

const JSON_TOP: Keys = Keys {
    built: &["mcpServers", "$schema", "x-bowline"],
    planned: &[],
};
const JSON_EXTRA_TOP: Keys = Keys {
    built: &["gateway"],
    planned: TOP.planned,
};
const JSON_SERVER: Keys = Keys {
    built: &[
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "type",
        "x-bowline",
    ],
    planned: &["disabled"],
};
/// Our own keys beside a foreign entry: all but those that the entry itself has.
const JSON_EXTRA: Keys = Keys {
    built: &[
        "inherit_env",
        "timeout",
        "start_timeout",
        "lazy",
        "isolation",
        "restart",
        "breaker",
        "tools",
    ],
    planned: SERVER.planned,
};

/// What the file said, and where.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// `gateway.listen`.
    pub(crate) listen: Option<Vec<SocketAddr>>,
    /// Every entry of `servers`, in file order.
    pub(crate) servers: Vec<Server>,
}

/// A text in which `${...}` is not expanded yet.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    /// As written.
    pub(crate) text: String,
    /// Where it stands.
    pub(crate) span: Range<usize>,
}

/// One server as written.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) name_span: Range<usize>,
    pub(crate) command: Option<Text>,
    pub(crate) url: Option<Text>,
    pub(crate) headers: Vec<(HeaderName, Text)>,
    pub(crate) transport: Option<Transport>,
    pub(crate) args: Vec<Text>,
    pub(crate) env: Vec<(String, Text)>,
    pub(crate) cwd: Option<Text>,
    pub(crate) inherit_env: Vec<Text>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) lazy: Option<bool>,
    pub(crate) isolation: Isolation,
    pub(crate) restart_budget: Option<u32>,
    pub(crate) restart_window: Option<Duration>,
    pub(crate) restart_backoff: Option<(Duration, Duration)>,
    pub(crate) breaker_failures: Option<u32>,
    pub(crate) breaker_rest: Option<Duration>,
    pub(crate) effects: BTreeMap<String, Effect>,
}

/// Reads the whole file and collects everything that is wrong with it.
pub(crate) fn read(root: &Node, syntax: Syntax) -> (File, Vec<Problem>) {
    let mut reader = Reader::default();
    let mut file = File::default();
    match syntax {
        Syntax::Toml => toml(&mut reader, root, &mut file),
        Syntax::Json => json(&mut reader, root, &mut file),
    }
    (file, reader.problems)
}

fn toml(reader: &mut Reader, root: &Node, file: &mut File) {
    for entry in reader.table(root, "the file", "the file", &TOP) {
        match entry.key.as_str() {
            "gateway" => gateway(reader, &entry.node, "[gateway]", file),
            "servers" => {
                for named in reader.names(&entry.node, "servers", SERVERS_MAX) {
                    check_name(reader, named);
                    let place = format!("[servers.{}]", named.key);
                    let mut server = begin(named);
                    let entries = reader.table(&named.node, &named.key, &place, &SERVER);
                    fill(reader, &mut server, entries, &place);
                    file.servers.push(server);
                }
            }
            _ => {}
        }
    }
}

fn json(reader: &mut Reader, root: &Node, file: &mut File) {
    let top = reader.table(root, "the file", "the file", &JSON_TOP);
    if !top.iter().any(|entry| entry.key == "mcpServers") && reader.problems.is_empty() {
        let at = root.span.start..root.span.start + 1;
        let label = "expected {\"mcpServers\": {...}}";
        reader
            .problems
            .push(Problem::new(at, "the file has no `mcpServers`", label));
    }
    for entry in top {
        match entry.key.as_str() {
            "mcpServers" => {
                for named in reader.names(&entry.node, "mcpServers", SERVERS_MAX) {
                    file.servers.push(json_server(reader, named));
                }
            }
            "x-bowline" => {
                for extra in reader.table(&entry.node, "x-bowline", "x-bowline", &JSON_EXTRA_TOP) {
                    if extra.key == "gateway" {
                        gateway(reader, &extra.node, "x-bowline.gateway", file);
                    }
                }
            }
            _ => {}
        }
    }
}

fn json_server(reader: &mut Reader, named: &Entry) -> Server {
    let place = format!("mcpServers.{}", named.key);
    let mut server = begin(named);
    let entries = reader.table(&named.node, &named.key, &place, &JSON_SERVER);
    fill(reader, &mut server, entries, &place);
    for entry in entries {
        match entry.key.as_str() {
            "type" => {
                let choices = [
                    ("stdio", None),
                    ("local", None),
                    ("http", Some(Transport::Auto)),
                    ("streamable-http", Some(Transport::Auto)),
                    ("streamableHttp", Some(Transport::Auto)),
                    ("remote", Some(Transport::Auto)),
                    ("sse", Some(Transport::Sse)),
                ];
                server.transport = choice(reader, entry, &choices).flatten();
            }
            "x-bowline" => {
                let place = format!("{place}.x-bowline");
                let extra = reader.table(&entry.node, "x-bowline", &place, &JSON_EXTRA);
                fill(reader, &mut server, extra, &place);
            }
            _ => {}
        }
    }
    server
}

fn begin(named: &Entry) -> Server {
    Server {
        name: named.key.clone(),
        name_span: named.span.clone(),
        ..Server::default()
    }
}

fn check_name(reader: &mut Reader, named: &Entry) {
    if super::name::is_valid(&named.key) {
        return;
    }
    let problem = Problem::new(
        named.span.clone(),
        format!("server name `{}` cannot be used", named.key.escape_debug()),
        "lower-case letters, digits and `-`, at most 32, not `-` first",
    );
    let slug = super::name::slug(&named.key);
    reader
        .problems
        .push(problem.help(format!("rename it to [servers.{slug}]")));
}

fn gateway(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "gateway", place, &GATEWAY) {
        if entry.key == "listen" {
            file.listen = reader.addresses(entry);
        }
    }
}

fn fill(reader: &mut Reader, server: &mut Server, entries: &[Entry], place: &str) {
    for entry in entries {
        match entry.key.as_str() {
            "command" => server.command = reader.text(entry),
            "url" => server.url = reader.text(entry),
            "headers" => server.headers = reader.headers(entry),
            "transport" => {
                let choices = [
                    ("auto", Transport::Auto),
                    ("http", Transport::Streamable),
                    ("sse", Transport::Sse),
                ];
                server.transport = choice(reader, entry, &choices);
            }
            "args" => server.args = reader.texts(entry),
            "env" => server.env = reader.variables(entry),
            "cwd" => server.cwd = reader.text(entry),
            "inherit_env" => server.inherit_env = reader.names_of_variables(entry),
            "timeout" => server.timeout = reader.duration(entry),
            "start_timeout" => server.start_timeout = reader.duration(entry),
            "lazy" => server.lazy = reader.boolean(entry),
            "isolation" => server.isolation = isolation(reader, entry),
            "restart" => restart(reader, server, entry, place),
            "breaker" => breaker(reader, server, entry, place),
            "tools" => tools(reader, server, entry, place),
            _ => {}
        }
    }
}

fn isolation(reader: &mut Reader, entry: &Entry) -> Isolation {
    let all = [
        Isolation::Auto,
        Isolation::Shared,
        Isolation::Principal,
        Isolation::Session,
    ];
    let choices = all.map(|isolation| (isolation.as_str(), isolation));
    choice(reader, entry, &choices).unwrap_or_default()
}

fn restart(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    for inner in reader.table(&entry.node, "restart", &inside(place, "restart"), &RESTART) {
        match inner.key.as_str() {
            "budget" => server.restart_budget = reader.count(inner),
            "window" => server.restart_window = reader.duration(inner),
            "backoff" => {
                let expected = "a range of durations such as \"100ms..5s\"";
                server.restart_backoff = reader.parsed(inner, expected, duration::parse_range);
            }
            _ => {}
        }
    }
}

fn breaker(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    for inner in reader.table(&entry.node, "breaker", &inside(place, "breaker"), &BREAKER) {
        match inner.key.as_str() {
            "failures" => server.breaker_failures = reader.count_from_one(inner),
            "rest" => server.breaker_rest = reader.duration(inner),
            _ => {}
        }
    }
}

fn tools(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    let place = inside(place, "tools");
    for tool in reader.names(&entry.node, "tools", usize::MAX) {
        let place = inside(&place, &tool.key);
        for inner in reader.table(&tool.node, &tool.key, &place, &TOOL) {
            let effects = [
                ("read", Effect::Read),
                ("write", Effect::Write),
                ("unknown", Effect::Unknown),
            ];
            if inner.key == "effect"
                && let Some(effect) = choice(reader, inner, &effects)
            {
                server.effects.insert(tool.key.clone(), effect);
            }
        }
    }
}

/// `[servers.a]` and `restart` make `[servers.a.restart]`.
fn inside(place: &str, key: &str) -> String {
    match place.strip_suffix(']') {
        Some(open) => format!("{open}.{key}]"),
        None => format!("{place}.{key}"),
    }
}

fn choice<T: Copy>(reader: &mut Reader, entry: &Entry, choices: &[(&str, T)]) -> Option<T> {
    let Value::Text(word) = &entry.node.value else {
        reader.wrong_kind(entry, "a string");
        return None;
    };
    let span = entry.node.span.clone();
    match choices.iter().find(|(name, _)| name == word) {
        Some((_, meaning)) => Some(*meaning),
        None => {
            let message = format!("`{}` cannot be \"{}\"", entry.key, word.escape_debug());
            let known = choices
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect::<Vec<_>>()
                .join(", ");
            let label = match nearest(word, choices.iter().map(|(name, _)| *name)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("expected one of {known}"),
            };
            reader.problems.push(Problem::new(span, message, label));
            None
        }
    }
}
