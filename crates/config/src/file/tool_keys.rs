//! The keys of a server's tools, including the queueing rules.

use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::Effect;
use bowline_core::lane::KeyChannel;
use bowline_host::spec::ToolRule;
use http::HeaderName;

use super::config_table::config_table;
use super::rule_keys::parse_tool_patterns;
use super::server_keys::{ServerSection, nested_table, parse_choice};
use super::tree_reader::{RESERVED_HEADERS, TreeReader};
use crate::config_problem::ConfigProblem;
use crate::tree::ConfigEntry;

/// Maximum length of the name of an idempotency key argument.
const ARGUMENT_BYTES_MAX: usize = 128;

/// Credential headers, unusable for idempotency keys.
const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// Spans of the queueing keys of a tool.
#[derive(Debug, Default)]
struct QueueKeySpans {
    /// Span of the key `queue`.
    queue: Option<Range<usize>>,
    /// Span of the value of `idempotency`, and whether it parsed.
    idempotency: Option<(Range<usize>, bool)>,
}

config_table! {
    /// `[servers.NAME.tools.TOOL]`: settings of a tool.
    pub(super) enum ToolKey {
        /// Whether calls read or write.
        Effect = "effect" takes "a choice",
        /// Whether running a call twice is like running it once.
        Idempotent = "idempotent" takes "true or false",
        /// Timeout of a call.
        Timeout = "timeout" takes "a duration",
        /// Tools whose cached responses a call outdates.
        Invalidates = "invalidates" takes "a list of tools",
        /// How long calls are queued while the server is away.
        Queue = "queue" takes "a duration",
        /// How the server is told the key of a queued call.
        Idempotency = "idempotency" takes "a key channel",
    }
}

/// Parses the table `tools` of a server.
pub(super) fn parse_tools(
    reader: &mut TreeReader,
    server: &mut ServerSection,
    entry: &ConfigEntry,
    table_path: &str,
) {
    let table_path = nested_table(table_path, "tools");
    for tool in reader.read_named_entries(&entry.node, "tools", usize::MAX) {
        let table_path = nested_table(&table_path, &tool.key);
        let mut rule = ToolRule::default();
        let mut key_spans = QueueKeySpans::default();
        for (key, inner) in reader.read_table::<ToolKey>(&tool.node, &tool.key, &table_path) {
            let effects = [
                ("read", Effect::Read),
                ("write", Effect::Write),
                ("unknown", Effect::Unknown),
            ];
            match key {
                ToolKey::Effect => rule.effect = parse_choice(reader, inner, &effects),
                ToolKey::Idempotent => rule.idempotent = reader.read_boolean(inner),
                ToolKey::Timeout => rule.timeout = reader.read_duration(inner),
                ToolKey::Invalidates => rule.invalidates = parse_tool_patterns(reader, inner),
                ToolKey::Queue => {
                    rule.queue = reader.read_duration(inner);
                    key_spans.queue = Some(inner.span.clone());
                }
                ToolKey::Idempotency => {
                    let channel = parse_idempotency(reader, inner);
                    key_spans.idempotency = Some((inner.node.span.clone(), channel.is_some()));
                    rule.idempotency = channel.unwrap_or_default();
                }
            }
        }
        key_spans.check_queueable(&tool.key, &rule, &mut reader.problems);
        if let (KeyChannel::Header(_), Some((span, _))) = (&rule.idempotency, key_spans.idempotency)
        {
            server.key_header_span.get_or_insert(span);
        }
        server.tools.insert(tool.key.clone(), rule);
    }
}

impl QueueKeySpans {
    /// Reports settings that forbid queueing.
    fn check_queueable(&self, tool: &str, rule: &ToolRule, problems: &mut Vec<ConfigProblem>) {
        let tool = tool.escape_debug();
        let Some(queue) = &self.queue else {
            if let (Some((span, true)), true) =
                (&self.idempotency, rule.idempotency != KeyChannel::None)
            {
                let message = format!("`idempotency` of `{tool}` has no use without `queue`");
                let problem =
                    ConfigProblem::new(span.clone(), message, "only queued calls have a key");
                problems.push(problem.with_help("add queue = \"24h\", or remove it"));
            }
            return;
        };
        if rule.queue.is_none() {
            // The unparsable value was already reported.
            return;
        }
        if rule.effect == Some(Effect::Read) {
            let message = format!("`{tool}` is a read, so its calls cannot be queued");
            let label = "what a read gives is wanted now";
            let problem = ConfigProblem::new(queue.clone(), message, label);
            problems.push(problem.with_help("remove it, or say effect = \"write\""));
            return;
        }
        let is_read = self.idempotency.as_ref().is_none_or(|(_, read)| *read);
        let can_repeat = rule.idempotency != KeyChannel::None || rule.idempotent == Some(true);
        if is_read && !can_repeat {
            let message =
                format!("calls of `{tool}` cannot be queued: repeated, they may run twice");
            let label = "how does the server know a repeated call?";
            let problem = ConfigProblem::new(queue.clone(), message, label);
            problems.push(problem.with_help(
                "add idempotency = \"argument:NAME\", \"header:NAME\" or \"meta\" if the server \
                 knows a call again by such a key, or idempotent = true if running it twice is \
                 like running it once",
            ));
        }
    }
}

fn parse_idempotency(reader: &mut TreeReader, entry: &ConfigEntry) -> Option<KeyChannel> {
    let expected = "\"argument:NAME\", \"header:NAME\", \"meta\" or \"none\"";
    reader.read_parsed(entry, expected, |text| match text.split_once(':') {
        None if text == "meta" => Some(KeyChannel::Meta),
        None if text == "none" => Some(KeyChannel::None),
        Some(("argument", name)) if is_argument_name(name) => {
            Some(KeyChannel::Argument(name.into()))
        }
        Some(("header", name)) => parse_key_header(name).map(KeyChannel::Header),
        _ => None,
    })
}

fn is_argument_name(name: &str) -> bool {
    (1..=ARGUMENT_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control)
}

/// Returns the header name unless reserved or a credential.
fn parse_key_header(name: &str) -> Option<Arc<str>> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let reserved = RESERVED_HEADERS.iter().chain(&CREDENTIAL_HEADERS);
    let is_free = reserved
        .into_iter()
        .all(|reserved| *reserved != name.as_str());
    is_free.then(|| name.as_str().into())
}
