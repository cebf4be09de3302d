//! A config file as it was written: every key checked, nothing filled in yet.

mod broker;
mod clients;
mod executor;
mod keys;
mod limits;
mod reader;
mod rules;
mod sandbox;
mod secrets;
mod server;
mod tools;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::http::Transport;
use bowline_link::http::endpoint::Endpoint;

use self::reader::Reader;
use self::rules::Rules;
use self::server::{choice, fill};
use super::Engine;
use super::audit::AuditExport;
use super::broker::BrokerConfig;
use super::frame::Problem;
use super::size;
use super::tree::{Entry, Node, Syntax};
use crate::secrets::StoreKind;

pub(crate) use self::clients::Agent;
pub(crate) use self::executor::{Executor, Servant};
pub(crate) use self::limits::{ShareHolder, WrittenShare};
pub(crate) use self::secrets::Secret;
pub(crate) use self::server::{Server, Span, Text};

/// Most servers in one file.
const SERVERS_MAX: usize = 1024;

/// Answers that are kept at all, and of one tool.
const CACHE_ENTRIES: RangeInclusive<u32> = 0..=1_000_000;

/// Bytes of all answers that are kept.
const CACHE_BYTES: RangeInclusive<u64> = 0..=16 * 1024 * size::MIB;

/// Bytes of one file of the audit trail.
const AUDIT_BYTES: RangeInclusive<u64> = size::MIB..=64 * 1024 * size::MIB;

/// Files of the audit trail.
const AUDIT_FILES: RangeInclusive<u32> = 1..=1_000;

/// What the file said, and where.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// `gateway.listen`.
    pub(crate) listen: Option<Vec<SocketAddr>>,
    /// `gateway.names`.
    pub(crate) names: Vec<Arc<str>>,
    /// `limits.principal_calls`.
    pub(crate) principal_calls: Option<u32>,
    /// `limits.starts`.
    pub(crate) starts: Option<u32>,
    /// What `limits` says of resources that principals share.
    pub(crate) shares: Vec<WrittenShare>,
    /// `limits.principal_requests_per_s`.
    pub(crate) requests_per_s: Option<u32>,
    /// `limits.principal_requests_burst`.
    pub(crate) requests_burst: Option<u32>,
    /// `limits.principal_bytes_per_s`.
    pub(crate) bytes_per_s: Option<u64>,
    /// `limits.principal_bytes_burst`.
    pub(crate) bytes_burst: Option<u64>,
    /// `limits.unproven_connections`.
    pub(crate) unproven_connections: Option<u32>,
    /// `limits.address_connections`.
    pub(crate) address_connections: Option<u32>,
    /// `limits.first_list_wait`.
    pub(crate) first_list_wait: Option<Duration>,
    /// `limits.stop_wait`.
    pub(crate) stop_wait: Option<Duration>,
    /// `telemetry.otlp`.
    pub(crate) otlp: Option<Endpoint>,
    /// `telemetry.service_name`.
    pub(crate) service_name: Option<String>,
    /// `telemetry.sample`.
    pub(crate) sample: Option<f64>,
    /// `cache.entries`.
    pub(crate) cache_entries: Option<u32>,
    /// `cache.bytes`.
    pub(crate) cache_bytes: Option<u64>,
    /// `cache.per_tool`.
    pub(crate) cache_per_tool: Option<u32>,
    /// `cache.ttl_max`.
    pub(crate) cache_ttl_max: Option<Duration>,
    /// `journal.engine`.
    pub(crate) engine: Option<Engine>,
    /// `broker`: what it takes on.
    pub(crate) broker: BrokerConfig,
    /// Every `[secrets.NAME]`.
    pub(crate) secrets: Vec<Secret>,
    /// `secret_store.kind`.
    pub(crate) secret_store: StoreKind,
    /// `clients`: what is said of programs that are started with `run`.
    pub(crate) clients: Vec<Agent>,
    /// Every `[executors.NAME]`.
    pub(crate) executors: Vec<Executor>,
    /// `executor`: what this machine does where it is one.
    pub(crate) servant: Servant,
    /// `audit.calls`.
    pub(crate) audit_calls: Option<bool>,
    /// `audit.payload`.
    pub(crate) audit_payload: Option<bool>,
    /// `audit.max_bytes`.
    pub(crate) audit_bytes: Option<u64>,
    /// `audit.keep`.
    pub(crate) audit_keep: Option<u32>,
    /// `audit.denials_max_bytes`.
    pub(crate) audit_denials_bytes: Option<u64>,
    /// `audit.min_age`.
    pub(crate) audit_min_age: Option<Duration>,
    /// `audit.max_age`.
    pub(crate) audit_max_age: Option<Duration>,
    /// `audit.export`.
    pub(crate) audit_export: Option<AuditExport>,
    /// Who may do what.
    pub(crate) rules: Rules,
    /// Every entry of `servers`, in file order.
    pub(crate) servers: Vec<Server>,
}

/// Reads the whole file and collects everything that is wrong with it.
pub(crate) fn read(root: &Node, syntax: Syntax) -> (File, Vec<Problem>) {
    let mut reader = Reader::default();
    let mut file = File::default();
    match syntax {
        Syntax::Toml => toml(&mut reader, root, &mut file),
        Syntax::Json => json(&mut reader, root, &mut file),
    }
    file.rules.finish(&mut reader);
    (file, reader.problems)
}

fn toml(reader: &mut Reader, root: &Node, file: &mut File) {
    for entry in reader.table(root, "the file", "the file", &keys::TOP) {
        match entry.key.as_str() {
            "servers" => {
                for named in reader.names(&entry.node, "servers", SERVERS_MAX) {
                    check_name(reader, named);
                    let place = format!("[servers.{}]", named.key);
                    let mut server = begin(named);
                    let entries = reader.table(&named.node, &named.key, &place, &keys::SERVER);
                    fill(reader, &mut server, entries, &place);
                    file.servers.push(server);
                }
            }
            key => {
                let place = format!("[{key}]");
                common(reader, key, &entry.node, &place, file);
            }
        }
    }
}

/// What both syntaxes have beside servers.
fn common(reader: &mut Reader, key: &str, node: &Node, place: &str, file: &mut File) {
    match key {
        "gateway" => gateway(reader, node, place, file),
        "limits" => limits::read(reader, node, place, file),
        "telemetry" => telemetry(reader, node, place, file),
        "cache" => cache(reader, node, place, file),
        "journal" => journal(reader, node, place, file),
        "broker" => file.broker = broker::read(reader, node, place),
        "secrets" => file.secrets = secrets::fill(reader, node, place),
        "secret_store" => file.secret_store = secrets::store(reader, node, place),
        "clients" => file.clients = clients::read(reader, node, place),
        "executors" => file.executors = executor::all(reader, node, place),
        "executor" => file.servant = executor::own(reader, node, place),
        "audit" => audit(reader, node, place, file),
        key => file.rules.fill(reader, key, node, place),
    }
}

fn json(reader: &mut Reader, root: &Node, file: &mut File) {
    let top = reader.table(root, "the file", "the file", &keys::JSON_TOP);
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
                let keys = &keys::JSON_EXTRA_TOP;
                for extra in reader.table(&entry.node, "x-bowline", "x-bowline", keys) {
                    let place = format!("x-bowline.{}", extra.key);
                    common(reader, &extra.key, &extra.node, &place, file);
                }
            }
            _ => {}
        }
    }
}

fn json_server(reader: &mut Reader, named: &Entry) -> Server {
    let place = format!("mcpServers.{}", named.key);
    let mut server = begin(named);
    let entries = reader.table(&named.node, &named.key, &place, &keys::JSON_SERVER);
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
                let extra = reader.table(&entry.node, "x-bowline", &place, &keys::JSON_EXTRA);
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
    for entry in reader.table(node, "gateway", place, &keys::GATEWAY) {
        match entry.key.as_str() {
            "listen" => file.listen = reader.addresses(entry),
            "names" => file.names = reader.names_of_hosts(entry),
            "expose" | "favourites" => file.rules.exposure(reader, entry),
            _ => {}
        }
    }
}

fn cache(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "cache", place, &keys::CACHE) {
        match entry.key.as_str() {
            "entries" => file.cache_entries = reader.count_within(entry, &CACHE_ENTRIES),
            "bytes" => file.cache_bytes = reader.size_within(entry, &CACHE_BYTES),
            "per_tool" => file.cache_per_tool = reader.count_within(entry, &CACHE_ENTRIES),
            "ttl_max" => file.cache_ttl_max = reader.duration(entry),
            _ => {}
        }
    }
}

fn journal(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "journal", place, &keys::JOURNAL) {
        if entry.key == "engine" {
            let choices = [("sqlite", Engine::Sqlite), ("memory", Engine::Memory)];
            file.engine = choice(reader, entry, &choices);
        }
    }
}

fn audit(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "audit", place, &keys::AUDIT) {
        match entry.key.as_str() {
            "calls" => file.audit_calls = reader.boolean(entry),
            "payload" => file.audit_payload = reader.boolean(entry),
            "max_bytes" => file.audit_bytes = reader.size_within(entry, &AUDIT_BYTES),
            "keep" => file.audit_keep = reader.count_within(entry, &AUDIT_FILES),
            "denials_max_bytes" => {
                file.audit_denials_bytes = reader.size_within(entry, &AUDIT_BYTES);
            }
            "min_age" => file.audit_min_age = reader.duration(entry),
            "max_age" => file.audit_max_age = reader.duration(entry),
            "export" => {
                let expected = AuditExport::EXPECTED;
                file.audit_export = reader.parsed(entry, expected, AuditExport::parse);
            }
            _ => {}
        }
    }
}

fn telemetry(reader: &mut Reader, node: &Node, place: &str, file: &mut File) {
    for entry in reader.table(node, "telemetry", place, &keys::TELEMETRY) {
        match entry.key.as_str() {
            "otlp" => {
                let expected = "an address such as \"http://127.0.0.1:4318\"";
                file.otlp = reader.parsed(entry, expected, |text| Endpoint::parse(text).ok());
            }
            "service_name" => {
                let expected = "a name of 1 to 255 characters";
                file.service_name = reader.parsed(entry, expected, |text| {
                    let fits = (1..=255).contains(&text.chars().count());
                    fits.then(|| text.to_owned())
                });
            }
            "sample" => file.sample = reader.share(entry),
            _ => {}
        }
    }
}
