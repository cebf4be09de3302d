//! The parsed config file: every key checked, defaults not yet filled in.

mod broker_keys;
mod client_keys;
mod config_table;
mod executor_keys;
mod key_reference;
mod limit_keys;
mod rule_keys;
mod sandbox_keys;
mod secret_keys;
mod section_tables;
mod server_keys;
mod tool_keys;
mod tree_reader;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;

use self::rule_keys::RuleSections;
use self::section_tables::{
    AuditKey, CacheKey, GatewayKey, JournalKey, JsonServerKey, JsonTopKey, TelemetryKey, TopKey,
};
use self::server_keys::{ServerKey, parse_choice, parse_server_key};
use self::tree_reader::TreeReader;
use super::JournalEngine;
use super::audit_config::AuditExportConfig;
use super::broker_config::BrokerConfig;
use super::config_problem::ConfigProblem;
use super::size;
use super::tree::{ConfigEntry, ConfigNode, ConfigSyntax};
use crate::secrets::SecretStoreKind;

pub(crate) use self::client_keys::ClientSection;
pub(crate) use self::executor_keys::{ExecutorOfferSection, ExecutorSection};
pub use self::key_reference::key_reference;
pub(crate) use self::limit_keys::{ShareHolder, ShareSetting};
pub(crate) use self::secret_keys::SecretSection;
pub(crate) use self::server_keys::{OptionalDuration, ServerSection, UnexpandedText};

/// Maximum servers of one file.
const SERVERS_MAX: usize = 1024;

/// Range of cached responses, in total and per tool.
const CACHE_ENTRIES_RANGE: RangeInclusive<u32> = 0..=1_000_000;

/// Range of the cache size in bytes.
const CACHE_BYTES_RANGE: RangeInclusive<u64> = 0..=16 * 1024 * size::MIB;

/// Range of the size of one audit file.
const AUDIT_BYTES_RANGE: RangeInclusive<u64> = size::MIB..=64 * 1024 * size::MIB;

/// Range of the number of audit files.
const AUDIT_FILES_RANGE: RangeInclusive<u32> = 1..=1_000;

/// The parsed keys of a file, with spans where needed.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    /// `gateway.listen`.
    pub(crate) listen: Option<Vec<SocketAddr>>,
    /// `gateway.names`.
    pub(crate) names: Vec<Arc<str>>,
    /// `limits.principal_calls`.
    pub(crate) principal_calls: Option<u32>,
    /// `limits.starts`.
    pub(crate) starts: Option<u32>,
    /// Shares of resources in `limits`.
    pub(crate) shares: Vec<ShareSetting>,
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
    pub(crate) otlp: Option<HttpEndpoint>,
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
    pub(crate) engine: Option<JournalEngine>,
    /// `broker`.
    pub(crate) broker: BrokerConfig,
    /// Every `[secrets.NAME]`.
    pub(crate) secrets: Vec<SecretSection>,
    /// `secret_store.kind`.
    pub(crate) secret_store: SecretStoreKind,
    /// `clients`: settings of programs started with `run`.
    pub(crate) clients: Vec<ClientSection>,
    /// Every `[executors.NAME]`.
    pub(crate) executors: Vec<ExecutorSection>,
    /// `executor`: settings of this machine as an executor.
    pub(crate) executor_offer: ExecutorOfferSection,
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
    pub(crate) audit_export: Option<AuditExportConfig>,
    /// The policy sections.
    pub(crate) rules: RuleSections,
    /// Every entry of `servers`, in file order.
    pub(crate) servers: Vec<ServerSection>,
}

/// Parses the whole file and collects all problems.
pub(crate) fn parse_file(
    root: &ConfigNode,
    syntax: ConfigSyntax,
) -> (ConfigFile, Vec<ConfigProblem>) {
    let mut reader = TreeReader::default();
    let mut file = ConfigFile::default();
    match syntax {
        ConfigSyntax::Toml => parse_toml_root(&mut reader, root, &mut file),
        ConfigSyntax::Json => parse_json_root(&mut reader, root, &mut file),
    }
    file.rules.assign_roles(&mut reader);
    (file, reader.problems)
}

fn parse_toml_root(reader: &mut TreeReader, root: &ConfigNode, file: &mut ConfigFile) {
    for (key, entry) in reader.read_table(root, "the file", "the file") {
        if key != TopKey::Servers {
            parse_section(reader, key, &entry.node, &format!("[{}]", entry.key), file);
            continue;
        }
        for named in reader.read_named_entries(&entry.node, "servers", SERVERS_MAX) {
            check_server_name(reader, named);
            let table_path = format!("[servers.{}]", named.key);
            let mut server = new_server_section(named);
            for (key, entry) in reader.read_table(&named.node, &named.key, &table_path) {
                parse_server_key(reader, &mut server, key, entry, &table_path);
            }
            file.servers.push(server);
        }
    }
}

/// Parses the sections common to both syntaxes, besides servers.
fn parse_section(
    reader: &mut TreeReader,
    key: TopKey,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    match key {
        TopKey::Gateway => parse_gateway(reader, node, table_path, file),
        TopKey::Limits => limit_keys::parse_limits(reader, node, table_path, file),
        TopKey::Telemetry => parse_telemetry(reader, node, table_path, file),
        TopKey::Cache => parse_cache(reader, node, table_path, file),
        TopKey::Journal => parse_journal(reader, node, table_path, file),
        TopKey::Broker => file.broker = broker_keys::parse_broker(reader, node, table_path),
        TopKey::Secrets => file.secrets = secret_keys::parse_secrets(reader, node, table_path),
        TopKey::SecretStore => {
            file.secret_store = secret_keys::parse_secret_store(reader, node, table_path)
        }
        TopKey::Clients => file.clients = client_keys::parse_clients(reader, node, table_path),
        TopKey::Executors => {
            file.executors = executor_keys::parse_executors(reader, node, table_path)
        }
        TopKey::Executor => {
            file.executor_offer = executor_keys::parse_executor_offer(reader, node, table_path)
        }
        TopKey::Audit => parse_audit(reader, node, table_path, file),
        TopKey::Policy
        | TopKey::Roles
        | TopKey::Principals
        | TopKey::Tokens
        | TopKey::Context
        | TopKey::Profiles => file.rules.parse_policy_key(reader, key, node, table_path),
        // Read by the root of each syntax.
        TopKey::Servers => {}
    }
}

fn parse_json_root(reader: &mut TreeReader, root: &ConfigNode, file: &mut ConfigFile) {
    let top = reader.read_table(root, "the file", "the file");
    let has_servers = top.iter().any(|(key, _)| *key == JsonTopKey::McpServers);
    if !has_servers && reader.problems.is_empty() {
        let at = root.span.start..root.span.start + 1;
        let label = "expected {\"mcpServers\": {...}}";
        reader.problems.push(ConfigProblem::new(
            at,
            "the file has no `mcpServers`",
            label,
        ));
    }
    for (key, entry) in top {
        match key {
            JsonTopKey::McpServers => {
                for named in reader.read_named_entries(&entry.node, "mcpServers", SERVERS_MAX) {
                    file.servers.push(parse_json_server(reader, named));
                }
            }
            JsonTopKey::Extra => {
                let is_here = |key| key != TopKey::Servers;
                let extras = reader.read_table_of(&entry.node, "x-bowline", "x-bowline", is_here);
                for (key, extra) in extras {
                    let table_path = format!("x-bowline.{}", extra.key);
                    parse_section(reader, key, &extra.node, &table_path, file);
                }
            }
            JsonTopKey::Schema => {}
        }
    }
}

fn parse_json_server(reader: &mut TreeReader, named: &ConfigEntry) -> ServerSection {
    let table_path = format!("mcpServers.{}", named.key);
    let mut server = new_server_section(named);
    let entries = reader.read_table::<JsonServerKey>(&named.node, &named.key, &table_path);
    for (key, entry) in &entries {
        if let Some(key) = key.server_key() {
            parse_server_key(reader, &mut server, key, entry, &table_path);
        }
    }
    for (key, entry) in entries {
        match key {
            JsonServerKey::Type => {
                let choices = [
                    ("stdio", None),
                    ("local", None),
                    ("http", Some(HttpTransport::Auto)),
                    ("streamable-http", Some(HttpTransport::Auto)),
                    ("streamableHttp", Some(HttpTransport::Auto)),
                    ("remote", Some(HttpTransport::Auto)),
                    ("sse", Some(HttpTransport::Sse)),
                ];
                server.transport = parse_choice(reader, entry, &choices).flatten();
            }
            JsonServerKey::Extra => {
                let table_path = format!("{table_path}.x-bowline");
                let is_here = |key: ServerKey| !key.is_foreign();
                let extras = reader.read_table_of(&entry.node, "x-bowline", &table_path, is_here);
                for (key, extra) in extras {
                    parse_server_key(reader, &mut server, key, extra, &table_path);
                }
            }
            _ => {}
        }
    }
    server
}

fn new_server_section(named: &ConfigEntry) -> ServerSection {
    ServerSection {
        name: named.key.clone(),
        name_span: named.span.clone(),
        ..ServerSection::default()
    }
}

fn check_server_name(reader: &mut TreeReader, named: &ConfigEntry) {
    if super::config_names::is_valid(&named.key) {
        return;
    }
    let problem = ConfigProblem::new(
        named.span.clone(),
        format!("server name `{}` cannot be used", named.key.escape_debug()),
        "lower-case letters, digits and `-`, at most 32, not `-` first",
    );
    let slug = super::config_names::to_slug(&named.key);
    reader
        .problems
        .push(problem.with_help(format!("rename it to [servers.{slug}]")));
}

fn parse_gateway(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (key, entry) in reader.read_table::<GatewayKey>(node, "gateway", table_path) {
        match key {
            GatewayKey::Listen => file.listen = reader.read_addresses(entry),
            GatewayKey::Names => file.names = reader.read_host_names(entry),
            GatewayKey::Expose => file.rules.parse_exposure(reader, entry),
            GatewayKey::Favourites => file.rules.parse_favourites(reader, entry),
        }
    }
}

fn parse_cache(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (key, entry) in reader.read_table::<CacheKey>(node, "cache", table_path) {
        match key {
            CacheKey::Entries => {
                file.cache_entries = reader.read_count(entry, &CACHE_ENTRIES_RANGE)
            }
            CacheKey::Bytes => file.cache_bytes = reader.read_size(entry, &CACHE_BYTES_RANGE),
            CacheKey::PerTool => {
                file.cache_per_tool = reader.read_count(entry, &CACHE_ENTRIES_RANGE)
            }
            CacheKey::TtlMax => file.cache_ttl_max = reader.read_duration(entry),
        }
    }
}

fn parse_journal(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (JournalKey::Engine, entry) in reader.read_table::<JournalKey>(node, "journal", table_path)
    {
        let choices = [
            ("sqlite", JournalEngine::Sqlite),
            ("memory", JournalEngine::Memory),
        ];
        file.engine = parse_choice(reader, entry, &choices);
    }
}

fn parse_audit(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (key, entry) in reader.read_table::<AuditKey>(node, "audit", table_path) {
        match key {
            AuditKey::Calls => file.audit_calls = reader.read_boolean(entry),
            AuditKey::Payload => file.audit_payload = reader.read_boolean(entry),
            AuditKey::MaxBytes => file.audit_bytes = reader.read_size(entry, &AUDIT_BYTES_RANGE),
            AuditKey::Keep => file.audit_keep = reader.read_count(entry, &AUDIT_FILES_RANGE),
            AuditKey::DenialsMaxBytes => {
                file.audit_denials_bytes = reader.read_size(entry, &AUDIT_BYTES_RANGE);
            }
            AuditKey::MinAge => file.audit_min_age = reader.read_duration(entry),
            AuditKey::MaxAge => file.audit_max_age = reader.read_duration(entry),
            AuditKey::Export => {
                let expected = AuditExportConfig::EXPECTED;
                file.audit_export = reader.read_parsed(entry, expected, AuditExportConfig::parse);
            }
        }
    }
}

fn parse_telemetry(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
    file: &mut ConfigFile,
) {
    for (key, entry) in reader.read_table::<TelemetryKey>(node, "telemetry", table_path) {
        match key {
            TelemetryKey::Otlp => {
                let expected = "an address such as \"http://127.0.0.1:4318\"";
                file.otlp =
                    reader.read_parsed(entry, expected, |text| HttpEndpoint::parse(text).ok());
            }
            TelemetryKey::ServiceName => {
                let expected = "a name of 1 to 255 characters";
                file.service_name = reader.read_parsed(entry, expected, |text| {
                    let fits = (1..=255).contains(&text.chars().count());
                    fits.then(|| text.to_owned())
                });
            }
            TelemetryKey::Sample => file.sample = reader.read_fraction(entry),
        }
    }
}
