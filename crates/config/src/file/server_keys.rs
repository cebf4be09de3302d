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

use super::config_table::config_table;
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

config_table! {
    /// `[servers.NAME]`: an MCP server.
    pub(super) enum ServerKey {
        /// Program of the server.
        Command = "command" takes "a text",
        /// Arguments of the program.
        Args = "args" takes "a list of texts",
        /// Variables of the program.
        Env = "env" takes "variables by name",
        /// Working directory of the program.
        Cwd = "cwd" takes "a path",
        /// Variables that are passed on.
        InheritEnv = "inherit_env" takes "a list of variables",
        /// Address of a server over HTTP.
        Url = "url" takes "an address",
        /// Headers of each request.
        Headers = "headers" takes "texts by name",
        /// Transport over HTTP; found out by default.
        Transport = "transport" takes "a choice",
        /// Executor that runs or reaches the server.
        Via = "via" takes "\"executor:NAME\"",
        /// Name of the server on that executor.
        Server = "server" takes "a text",
        /// Timeout of a call.
        Timeout = "timeout" takes "a duration",
        /// Timeout of a start.
        StartTimeout = "start_timeout" takes "a duration",
        /// Timeout of a first start, which may install the program.
        InstallTimeout = "install_timeout" takes "a duration or \"off\"",
        /// Wait for calls in flight before a restart or a stop.
        DrainTimeout = "drain_timeout" takes "a duration",
        /// Whether the server starts with its first call.
        Lazy = "lazy" takes "true or false",
        /// Idle time after which the server is stopped.
        IdleStop = "idle_stop" takes "a duration or \"off\"",
        /// Interval of pings.
        Ping = "ping" takes "a duration or \"off\"",
        /// Age at which a list is requested again.
        Relist = "relist" takes "a duration or \"off\"",
        /// Era of the protocol; found out by default.
        Era = "era" takes "a choice",
        /// Who shares a link to the server.
        Isolation = "isolation" takes "a choice",
        /// Calls in flight.
        MaxCalls = "max_calls" takes "a whole number",
        /// Calls that wait.
        Queue = "queue" takes "a whole number",
        /// Entries of a list.
        MaxList = "max_list" takes "a whole number",
        /// Size of a response that is read whole.
        MaxResult = "max_result" takes "a size",
        /// Resources of the program.
        Limits = "limits" takes "a table",
        /// Sandbox of the program.
        Sandbox = "sandbox" takes "a choice",
        /// Paths that the program may use.
        Fs = "fs" takes "a list of texts",
        /// Ports that the program may connect to.
        Net = "net" takes "a list of ports",
        /// Restarts after a failure.
        Restart = "restart" takes "a table",
        /// Rest after repeated failures.
        Breaker = "breaker" takes "a table",
        /// What happens when definitions of tools change.
        Pin = "pin" takes "a choice",
        /// Whether responses are cached.
        Cache = "cache" takes "true or false",
        /// Whether results are checked against their schemas.
        CheckOutput = "check_output" takes "true or false",
        /// Whether secrets are taken out of results.
        RedactResults = "redact_results" takes "true or false",
        /// Whether arguments of the program may hold secrets.
        ArgvSecrets = "argv_secrets" takes "a choice",
        /// Settings of single tools.
        Tools = "tools" takes "tables by name",
    }
    planned { "journal" }
}

config_table! {
    /// `[servers.NAME.limits]`: resources of a program.
    pub(super) enum ChildLimitKey {
        /// Memory of a process.
        Memory = "memory" takes "a size",
        /// Processes and threads.
        Processes = "processes" takes "a whole number",
        /// Size of a file.
        File = "file" takes "a size",
        /// Open files of a process.
        OpenFiles = "open_files" takes "a whole number",
    }
}

config_table! {
    /// `[servers.NAME.restart]`: restarts after a failure.
    pub(super) enum RestartKey {
        /// Restarts within the window.
        Budget = "budget" takes "a whole number",
        /// The window.
        Window = "window" takes "a duration",
        /// Pauses before restarts.
        Backoff = "backoff" takes "a range of durations",
    }
}

config_table! {
    /// `[servers.NAME.breaker]`: rest after repeated failures.
    pub(super) enum BreakerKey {
        /// Failures in a row that open the breaker.
        Failures = "failures" takes "a whole number",
        /// Rest before the next attempt.
        Rest = "rest" takes "a duration",
    }
}

impl ServerKey {
    /// Whether a JSON file has the key, or one for the same, beside `x-bowline`.
    pub(super) const fn is_foreign(self) -> bool {
        matches!(
            self,
            Self::Command
                | Self::Args
                | Self::Env
                | Self::Cwd
                | Self::Url
                | Self::Headers
                | Self::Transport
        )
    }
}

/// Parses a key into `server`.
pub(super) fn parse_server_key(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    key: ServerKey,
    entry: &ConfigEntry,
    table_path: &str,
) {
    match key {
        ServerKey::Command => server.command = reader.read_text(entry),
        ServerKey::Url => server.url = reader.read_text(entry),
        ServerKey::Headers => server.headers = reader.read_headers(entry),
        ServerKey::Transport => {
            let choices = [
                ("auto", HttpTransport::Auto),
                ("http", HttpTransport::Streamable),
                ("sse", HttpTransport::Sse),
            ];
            server.transport = parse_choice(reader, entry, &choices);
        }
        ServerKey::Via => server.via = reader.read_text(entry),
        ServerKey::Server => server.remote_name = reader.read_text(entry),
        ServerKey::Args => server.args = reader.read_texts(entry),
        ServerKey::Env => server.env = reader.read_variables(entry),
        ServerKey::Cwd => server.cwd = reader.read_text(entry),
        ServerKey::InheritEnv => server.inherit_env = reader.read_variable_names(entry),
        ServerKey::Timeout => server.timeout = reader.read_duration(entry),
        ServerKey::StartTimeout => server.start_timeout = reader.read_duration(entry),
        ServerKey::InstallTimeout => server.install_timeout = reader.read_optional_duration(entry),
        ServerKey::DrainTimeout => server.drain_timeout = reader.read_duration(entry),
        ServerKey::Lazy => server.lazy = reader.read_boolean(entry),
        ServerKey::IdleStop => server.idle_stop = reader.read_optional_duration(entry),
        ServerKey::Ping => server.ping = reader.read_optional_duration(entry),
        ServerKey::Relist => server.relist = reader.read_optional_duration(entry),
        ServerKey::Era => server.era_setting = parse_era(reader, entry),
        ServerKey::Isolation => server.isolation = parse_isolation(reader, entry),
        ServerKey::MaxCalls => server.max_calls = reader.read_count(entry, &MAX_CALLS_RANGE),
        ServerKey::Queue => server.queue = reader.read_count(entry, &QUEUE_RANGE),
        ServerKey::MaxList => server.max_list = reader.read_count(entry, &MAX_LIST_RANGE),
        ServerKey::MaxResult => server.max_result = reader.read_size(entry, &MAX_RESULT_RANGE),
        ServerKey::Limits => parse_child_limits(reader, server, entry, table_path),
        ServerKey::Sandbox | ServerKey::Fs | ServerKey::Net => {
            sandbox_keys::parse_sandbox_key(reader, server, key, entry);
        }
        ServerKey::Restart => parse_restart(reader, server, entry, table_path),
        ServerKey::Breaker => parse_breaker(reader, server, entry, table_path),
        ServerKey::Pin => server.pin = parse_pin_mode(reader, entry),
        ServerKey::Cache => server.cache = reader.read_boolean(entry),
        ServerKey::CheckOutput => server.check_output = reader.read_boolean(entry),
        ServerKey::RedactResults => server.redact_results = reader.read_boolean(entry),
        ServerKey::ArgvSecrets => {
            let choices = [
                ("refuse", ArgvSecrets::Refuse),
                ("allow", ArgvSecrets::Allow),
            ];
            server.argv_secrets = parse_choice(reader, entry, &choices).unwrap_or_default();
        }
        ServerKey::Tools => parse_tools(reader, server, entry, table_path),
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
    for (key, inner) in reader.read_table::<ChildLimitKey>(&entry.node, "limits", &table_path) {
        let limits = &mut server.limits;
        match key {
            ChildLimitKey::Memory => {
                limits.memory_bytes_max = reader.read_size(inner, &MEMORY_BYTES_RANGE)
            }
            ChildLimitKey::File => {
                limits.file_bytes_max = reader.read_size(inner, &FILE_BYTES_RANGE)
            }
            ChildLimitKey::Processes => {
                limits.processes_max = reader.read_count(inner, &PROCESSES_RANGE).map(u64::from);
            }
            ChildLimitKey::OpenFiles => {
                limits.open_files_max = reader.read_count(inner, &OPEN_FILES_RANGE).map(u64::from);
            }
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
    for (key, inner) in reader.read_table::<RestartKey>(&entry.node, "restart", &table_path) {
        match key {
            RestartKey::Budget => server.restart_budget = reader.read_count(inner, &(0..=u32::MAX)),
            RestartKey::Window => server.restart_window = reader.read_duration(inner),
            RestartKey::Backoff => {
                let expected = "a range of durations such as \"100ms..5s\"";
                server.restart_backoff =
                    reader.read_parsed(inner, expected, duration::parse_duration_range);
            }
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
    for (key, inner) in reader.read_table::<BreakerKey>(&entry.node, "breaker", &table_path) {
        match key {
            BreakerKey::Failures => {
                server.breaker_failures = reader.read_count(inner, &(1..=u32::MAX))
            }
            BreakerKey::Rest => server.breaker_rest = reader.read_duration(inner),
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
