//! The keys of one server.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use bowline_core::era::{Era, Speaks};
use bowline_host::pins::PinMode;
use bowline_host::spec::{ChildLimits, Isolation, ToolRule};
use bowline_link::http::Transport;
use bowline_link::sandbox::{Level, Net};
use http::HeaderName;

use super::keys;
use super::reader::Reader;
use super::sandbox;
use super::tools::tools;
use crate::config::frame::Problem;
use crate::config::suggest::nearest;
use crate::config::tree::{Entry, Value};
use crate::config::{ArgvSecrets, duration, size};

/// Calls a server may have in flight.
const MAX_CALLS: RangeInclusive<u32> = 1..=65_536;

/// Calls that may wait for a place.
const QUEUE: RangeInclusive<u32> = 0..=65_536;

/// Entries of one list that are offered.
const MAX_LIST: RangeInclusive<u32> = 1..=131_072;

/// Bytes of a response that is passed on whole: at most the share of one principal.
const MAX_RESULT: RangeInclusive<u64> = 64 * 1024..=32 * size::MIB;

/// Bytes of memory: less and no program starts.
const MEMORY_BYTES: RangeInclusive<u64> = 16 * size::MIB..=16 * size::TIB;

/// Bytes of one file.
const FILE_BYTES: RangeInclusive<u64> = 0..=16 * size::TIB;

/// Processes and threads of one server.
const PROCESSES: RangeInclusive<u32> = 1..=1_000_000;

/// Open files: a program needs some for itself.
const OPEN_FILES: RangeInclusive<u32> = 16..=1_048_576;

/// A text in which `${...}` is not expanded yet.
#[derive(Clone)]
pub(crate) struct Text {
    /// As written.
    pub(crate) text: String,
    /// Where it stands.
    pub(crate) span: Range<usize>,
}

// What is written may be a secret; where it stands is not.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Text").field(&self.span).finish()
    }
}

/// A duration that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// Never.
    Off,
    /// After this long.
    After(Duration),
}

impl Span {
    /// Returns the duration, if it is not switched off.
    pub(crate) const fn duration(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::After(duration) => Some(duration),
        }
    }
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
    /// `executor:NAME`.
    pub(crate) via: Option<Text>,
    /// What it is called there.
    pub(crate) there: Option<Text>,
    pub(crate) args: Vec<Text>,
    pub(crate) env: Vec<(String, Text)>,
    pub(crate) cwd: Option<Text>,
    pub(crate) inherit_env: Vec<Text>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) install_timeout: Option<Span>,
    pub(crate) drain_timeout: Option<Duration>,
    pub(crate) lazy: Option<bool>,
    pub(crate) idle_stop: Option<Span>,
    pub(crate) ping: Option<Span>,
    pub(crate) relist: Option<Span>,
    pub(crate) speaks: Speaks,
    pub(crate) isolation: Isolation,
    pub(crate) max_calls: Option<u32>,
    pub(crate) queue: Option<u32>,
    pub(crate) max_list: Option<u32>,
    pub(crate) max_result: Option<u64>,
    pub(crate) limits: ChildLimits,
    /// Where `limits` stands, if it is given.
    pub(crate) limits_span: Option<Range<usize>>,
    pub(crate) sandbox: Level,
    pub(crate) fs: Vec<Text>,
    pub(crate) net: Net,
    /// Where `sandbox`, `fs` or `net` stands, if one is given.
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
    /// Where it is said first that a key travels in a header, if it is.
    pub(crate) key_header_span: Option<Range<usize>>,
}

/// Takes the values of `entries` into `server`; keys that are not ours were told before.
pub(super) fn fill(reader: &mut Reader, server: &mut Server, entries: &[Entry], place: &str) {
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
            "via" => server.via = reader.text(entry),
            "server" => server.there = reader.text(entry),
            "args" => server.args = reader.texts(entry),
            "env" => server.env = reader.variables(entry),
            "cwd" => server.cwd = reader.text(entry),
            "inherit_env" => server.inherit_env = reader.names_of_variables(entry),
            "timeout" => server.timeout = reader.duration(entry),
            "start_timeout" => server.start_timeout = reader.duration(entry),
            "install_timeout" => server.install_timeout = reader.span(entry),
            "drain_timeout" => server.drain_timeout = reader.duration(entry),
            "lazy" => server.lazy = reader.boolean(entry),
            "idle_stop" => server.idle_stop = reader.span(entry),
            "ping" => server.ping = reader.span(entry),
            "relist" => server.relist = reader.span(entry),
            "era" => server.speaks = speaks(reader, entry),
            "isolation" => server.isolation = isolation(reader, entry),
            "max_calls" => server.max_calls = reader.count_within(entry, &MAX_CALLS),
            "queue" => server.queue = reader.count_within(entry, &QUEUE),
            "max_list" => server.max_list = reader.count_within(entry, &MAX_LIST),
            "max_result" => server.max_result = reader.size_within(entry, &MAX_RESULT),
            "limits" => limits(reader, server, entry, place),
            "sandbox" | "fs" | "net" => sandbox::fill(reader, server, entry),
            "restart" => restart(reader, server, entry, place),
            "breaker" => breaker(reader, server, entry, place),
            "pin" => server.pin = pin(reader, entry),
            "cache" => server.cache = reader.boolean(entry),
            "check_output" => server.check_output = reader.boolean(entry),
            "redact_results" => server.redact_results = reader.boolean(entry),
            "argv_secrets" => {
                let choices = [
                    ("refuse", ArgvSecrets::Refuse),
                    ("allow", ArgvSecrets::Allow),
                ];
                server.argv_secrets = choice(reader, entry, &choices).unwrap_or_default();
            }
            "tools" => tools(reader, server, entry, place),
            _ => {}
        }
    }
}

fn speaks(reader: &mut Reader, entry: &Entry) -> Speaks {
    let only = |era: Era| (era.as_str(), Speaks::Only(era));
    let choices = [("auto", Speaks::Auto), only(Era::Legacy), only(Era::Modern)];
    choice(reader, entry, &choices).unwrap_or_default()
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

fn pin(reader: &mut Reader, entry: &Entry) -> Option<PinMode> {
    let choices = [
        ("off", PinMode::Off),
        ("warn", PinMode::Warn),
        ("block", PinMode::Block),
    ];
    choice(reader, entry, &choices)
}

fn limits(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    let place = inside(place, "limits");
    server.limits_span = Some(entry.span.clone());
    for inner in reader.table(&entry.node, "limits", &place, &keys::CHILD_LIMITS) {
        let limits = &mut server.limits;
        match inner.key.as_str() {
            "memory" => limits.memory_bytes_max = reader.size_within(inner, &MEMORY_BYTES),
            "file" => limits.file_bytes_max = reader.size_within(inner, &FILE_BYTES),
            "processes" => {
                limits.processes_max = reader.count_within(inner, &PROCESSES).map(u64::from);
            }
            "open_files" => {
                limits.open_files_max = reader.count_within(inner, &OPEN_FILES).map(u64::from);
            }
            _ => {}
        }
    }
}

fn restart(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    let place = inside(place, "restart");
    for inner in reader.table(&entry.node, "restart", &place, &keys::RESTART) {
        match inner.key.as_str() {
            "budget" => server.restart_budget = reader.count_within(inner, &(0..=u32::MAX)),
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
    let place = inside(place, "breaker");
    for inner in reader.table(&entry.node, "breaker", &place, &keys::BREAKER) {
        match inner.key.as_str() {
            "failures" => server.breaker_failures = reader.count_within(inner, &(1..=u32::MAX)),
            "rest" => server.breaker_rest = reader.duration(inner),
            _ => {}
        }
    }
}

/// `[servers.a]` and `restart` make `[servers.a.restart]`.
pub(super) fn inside(place: &str, key: &str) -> String {
    match place.strip_suffix(']') {
        Some(open) => format!("{open}.{key}]"),
        None => format!("{place}.{key}"),
    }
}

pub(super) fn choice<T: Copy>(
    reader: &mut Reader,
    entry: &Entry,
    choices: &[(&str, T)],
) -> Option<T> {
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
