//! The keys of one server.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use bowline_core::era::{Era, EraSetting};
use bowline_host::pins::PinMode;
use bowline_host::spec::{ChildLimits, Isolation, ToolRule};
use bowline_link::http::HttpTransport;
use bowline_link::sandbox::{NetAccess, SandboxLevel};
use http::HeaderName;

use super::known_keys;
use super::sandbox_keys;
use super::tool_keys::parse_tools;
use super::tree_reader::TreeReader;
use crate::config_problem::ConfigProblem;
use crate::tree::{ConfigEntry, ConfigValue};
use crate::{ArgvSecrets, duration, size};
use bowline_core::suggest::nearest_match;

/// Range of calls in flight of a server.
const MAX_CALLS_RANGE: RangeInclusive<u32> = 1..=65_536;

/// Range of queued calls.
const QUEUE_RANGE: RangeInclusive<u32> = 0..=65_536;

/// Range of offered list entries.
const MAX_LIST_RANGE: RangeInclusive<u32> = 1..=131_072;

/// Range of a response buffered whole: at most the share of one principal.
const MAX_RESULT_RANGE: RangeInclusive<u64> = 64 * 1024..=32 * size::MIB;

/// Range of memory in bytes; with less no program starts.
const MEMORY_BYTES_RANGE: RangeInclusive<u64> = 16 * size::MIB..=16 * size::TIB;

/// Range of file sizes in bytes.
const FILE_BYTES_RANGE: RangeInclusive<u64> = 0..=16 * size::TIB;

/// Range of processes and threads of one server.
const PROCESSES_RANGE: RangeInclusive<u32> = 1..=1_000_000;

/// Range of open files; a program needs some for itself.
const OPEN_FILES_RANGE: RangeInclusive<u32> = 16..=1_048_576;

/// A text with unexpanded `${...}` references.
#[derive(Clone)]
pub(crate) struct UnexpandedText {
    /// The text as written.
    pub(crate) text: String,
    /// Span of the text.
    pub(crate) span: Range<usize>,
}

// The text may be a secret, so Debug shows the span only.
impl fmt::Debug for UnexpandedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnexpandedText").field(&self.span).finish()
    }
}

/// A duration, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionalDuration {
    /// Disabled.
    Off,
    /// Enabled with this duration.
    After(Duration),
}

impl OptionalDuration {
    /// Returns the duration unless disabled.
    pub(crate) const fn duration(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::After(duration) => Some(duration),
        }
    }
}

/// The section of one server.
#[derive(Debug, Default)]
pub(crate) struct ServerSection {
    pub(crate) name: String,
    pub(crate) name_span: Range<usize>,
    pub(crate) command: Option<UnexpandedText>,
    pub(crate) url: Option<UnexpandedText>,
    pub(crate) headers: Vec<(HeaderName, UnexpandedText)>,
    pub(crate) transport: Option<HttpTransport>,
    /// `executor:NAME`.
    pub(crate) via: Option<UnexpandedText>,
    /// Name of the server on the executor.
    pub(crate) remote_name: Option<UnexpandedText>,
    pub(crate) args: Vec<UnexpandedText>,
    pub(crate) env: Vec<(String, UnexpandedText)>,
    pub(crate) cwd: Option<UnexpandedText>,
    pub(crate) inherit_env: Vec<UnexpandedText>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) install_timeout: Option<OptionalDuration>,
    pub(crate) drain_timeout: Option<Duration>,
    pub(crate) lazy: Option<bool>,
    pub(crate) idle_stop: Option<OptionalDuration>,
    pub(crate) ping: Option<OptionalDuration>,
    pub(crate) relist: Option<OptionalDuration>,
    pub(crate) era_setting: EraSetting,
    pub(crate) isolation: Isolation,
    pub(crate) max_calls: Option<u32>,
    pub(crate) queue: Option<u32>,
    pub(crate) max_list: Option<u32>,
    pub(crate) max_result: Option<u64>,
    pub(crate) limits: ChildLimits,
    /// Span of `limits`, if present.
    pub(crate) limits_span: Option<Range<usize>>,
    pub(crate) sandbox: SandboxLevel,
    pub(crate) fs: Vec<UnexpandedText>,
    pub(crate) net: NetAccess,
    /// Span of `sandbox`, `fs` or `net`, if present.
    pub(crate) sandbox_span: Option<Range<usize>>,
    pub(crate) restart_budget: Option<u32>,
    pub(crate) restart_window: Option<Duration>,
    pub(crate) restart_backoff: Option<(Duration, Duration)>,
    pub(crate) breaker_failures: Option<u32>,
    pub(crate) breaker_rest: Option<Duration>,
    pub(crate) pin: Option<PinMode>,
    pub(crate) cache: Option<bool>,
    pub(crate) check_output: Option<bool>,
    pub(crate) redact_results: Option<bool>,
    pub(crate) argv_secrets: ArgvSecrets,
    pub(crate) tools: BTreeMap<String, ToolRule>,
    /// Span of the first `idempotency` value that uses a header, if any.
    pub(crate) key_header_span: Option<Range<usize>>,
}

/// Parses `entries` into `server`; unknown keys were reported earlier.
pub(super) fn parse_server_keys(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    entries: &[ConfigEntry],
    table_path: &str,
) {
    for entry in entries {
        match entry.key.as_str() {
            "command" => server.command = reader.read_text(entry),
            "url" => server.url = reader.read_text(entry),
            "headers" => server.headers = reader.read_headers(entry),
            "transport" => {
                let choices = [
                    ("auto", HttpTransport::Auto),
                    ("http", HttpTransport::Streamable),
                    ("sse", HttpTransport::Sse),
                ];
                server.transport = parse_choice(reader, entry, &choices);
            }
            "via" => server.via = reader.read_text(entry),
            "server" => server.remote_name = reader.read_text(entry),
            "args" => server.args = reader.read_texts(entry),
            "env" => server.env = reader.read_variables(entry),
            "cwd" => server.cwd = reader.read_text(entry),
            "inherit_env" => server.inherit_env = reader.read_variable_names(entry),
            "timeout" => server.timeout = reader.read_duration(entry),
            "start_timeout" => server.start_timeout = reader.read_duration(entry),
            "install_timeout" => server.install_timeout = reader.read_optional_duration(entry),
            "drain_timeout" => server.drain_timeout = reader.read_duration(entry),
            "lazy" => server.lazy = reader.read_boolean(entry),
            "idle_stop" => server.idle_stop = reader.read_optional_duration(entry),
            "ping" => server.ping = reader.read_optional_duration(entry),
            "relist" => server.relist = reader.read_optional_duration(entry),
            "era" => server.era_setting = parse_era(reader, entry),
            "isolation" => server.isolation = parse_isolation(reader, entry),
            "max_calls" => server.max_calls = reader.read_count(entry, &MAX_CALLS_RANGE),
            "queue" => server.queue = reader.read_count(entry, &QUEUE_RANGE),
            "max_list" => server.max_list = reader.read_count(entry, &MAX_LIST_RANGE),
            "max_result" => server.max_result = reader.read_size(entry, &MAX_RESULT_RANGE),
            "limits" => parse_child_limits(reader, server, entry, table_path),
            "sandbox" | "fs" | "net" => sandbox_keys::parse_sandbox_key(reader, server, entry),
            "restart" => parse_restart(reader, server, entry, table_path),
            "breaker" => parse_breaker(reader, server, entry, table_path),
            "pin" => server.pin = parse_pin_mode(reader, entry),
            "cache" => server.cache = reader.read_boolean(entry),
            "check_output" => server.check_output = reader.read_boolean(entry),
            "redact_results" => server.redact_results = reader.read_boolean(entry),
            "argv_secrets" => {
                let choices = [
                    ("refuse", ArgvSecrets::Refuse),
                    ("allow", ArgvSecrets::Allow),
                ];
                server.argv_secrets = parse_choice(reader, entry, &choices).unwrap_or_default();
            }
            "tools" => parse_tools(reader, server, entry, table_path),
            _ => {}
        }
    }
}

fn parse_era(reader: &mut TreeReader, entry: &ConfigEntry) -> EraSetting {
    let only = |era: Era| (era.as_str(), EraSetting::Only(era));
    let choices = [
        ("auto", EraSetting::Auto),
        only(Era::Legacy),
        only(Era::Modern),
    ];
    parse_choice(reader, entry, &choices).unwrap_or_default()
}

fn parse_isolation(reader: &mut TreeReader, entry: &ConfigEntry) -> Isolation {
    let all = [
        Isolation::Auto,
        Isolation::Shared,
        Isolation::Principal,
        Isolation::Session,
    ];
    let choices = all.map(|isolation| (isolation.as_str(), isolation));
    parse_choice(reader, entry, &choices).unwrap_or_default()
}

fn parse_pin_mode(reader: &mut TreeReader, entry: &ConfigEntry) -> Option<PinMode> {
    let choices = [
        ("off", PinMode::Off),
        ("warn", PinMode::Warn),
        ("block", PinMode::Block),
    ];
    parse_choice(reader, entry, &choices)
}

fn parse_child_limits(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    entry: &ConfigEntry,
    table_path: &str,
) {
    let table_path = nested_table(table_path, "limits");
    server.limits_span = Some(entry.span.clone());
    for inner in reader.read_table(
        &entry.node,
        "limits",
        &table_path,
        &known_keys::CHILD_LIMITS,
    ) {
        let limits = &mut server.limits;
        match inner.key.as_str() {
            "memory" => limits.memory_bytes_max = reader.read_size(inner, &MEMORY_BYTES_RANGE),
            "file" => limits.file_bytes_max = reader.read_size(inner, &FILE_BYTES_RANGE),
            "processes" => {
                limits.processes_max = reader.read_count(inner, &PROCESSES_RANGE).map(u64::from);
            }
            "open_files" => {
                limits.open_files_max = reader.read_count(inner, &OPEN_FILES_RANGE).map(u64::from);
            }
            _ => {}
        }
    }
}

fn parse_restart(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    entry: &ConfigEntry,
    table_path: &str,
) {
    let table_path = nested_table(table_path, "restart");
    for inner in reader.read_table(&entry.node, "restart", &table_path, &known_keys::RESTART) {
        match inner.key.as_str() {
            "budget" => server.restart_budget = reader.read_count(inner, &(0..=u32::MAX)),
            "window" => server.restart_window = reader.read_duration(inner),
            "backoff" => {
                let expected = "a range of durations such as \"100ms..5s\"";
                server.restart_backoff =
                    reader.read_parsed(inner, expected, duration::parse_duration_range);
            }
            _ => {}
        }
    }
}

fn parse_breaker(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    entry: &ConfigEntry,
    table_path: &str,
) {
    let table_path = nested_table(table_path, "breaker");
    for inner in reader.read_table(&entry.node, "breaker", &table_path, &known_keys::BREAKER) {
        match inner.key.as_str() {
            "failures" => server.breaker_failures = reader.read_count(inner, &(1..=u32::MAX)),
            "rest" => server.breaker_rest = reader.read_duration(inner),
            _ => {}
        }
    }
}

/// Appends a key to a table name: `[servers.a]` and `restart` make `[servers.a.restart]`.
pub(super) fn nested_table(table_path: &str, key: &str) -> String {
    match table_path.strip_suffix(']') {
        Some(open) => format!("{open}.{key}]"),
        None => format!("{table_path}.{key}"),
    }
}

pub(super) fn parse_choice<T: Copy>(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
    choices: &[(&str, T)],
) -> Option<T> {
    let ConfigValue::Text(word) = &entry.node.value else {
        reader.report_wrong_type(entry, "a string");
        return None;
    };
    let span = entry.node.span.clone();
    match choices.iter().find(|(name, _)| name == word) {
        Some((_, value)) => Some(*value),
        None => {
            let message = format!("`{}` cannot be \"{}\"", entry.key, word.escape_debug());
            let expected = choices
                .iter()
                .map(|(name, _)| format!("\"{name}\""))
                .collect::<Vec<_>>()
                .join(", ");
            let label = match nearest_match(word, choices.iter().map(|(name, _)| *name)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("expected one of {expected}"),
            };
            reader
                .problems
                .push(ConfigProblem::new(span, message, label));
            None
        }
    }
}
