//! What a file says of the tools of one server, and whether they can be queued as it says.

use std::ops::Range;
use std::sync::Arc;

use bowline_core::call::Effect;
use bowline_core::lane::Channel;
use bowline_host::spec::ToolRule;
use http::HeaderName;

use super::keys;
use super::reader::{OUR_HEADERS, Reader};
use super::rules::tool_globs;
use super::server::{Server, choice, inside};
use crate::config::frame::Problem;
use crate::config::tree::Entry;

/// Longest name of an argument that carries a key.
const ARGUMENT_BYTES_MAX: usize = 128;

/// Headers that prove who we are: a key in one of them would take its place.
const CREDENTIALS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// Where a tool's entry says how it is queued.
#[derive(Debug, Default)]
struct Written {
    /// The key `queue`.
    queue: Option<Range<usize>>,
    /// The value of `idempotency`, and whether it could be read.
    idempotency: Option<(Range<usize>, bool)>,
}

/// Reads the table `tools` of a server.
pub(super) fn tools(reader: &mut Reader, server: &mut Server, entry: &Entry, place: &str) {
    let place = inside(place, "tools");
    for tool in reader.names(&entry.node, "tools", usize::MAX) {
        let place = inside(&place, &tool.key);
        let mut rule = ToolRule::default();
        let mut written = Written::default();
        for inner in reader.table(&tool.node, &tool.key, &place, &keys::TOOL) {
            let effects = [
                ("read", Effect::Read),
                ("write", Effect::Write),
                ("unknown", Effect::Unknown),
            ];
            match inner.key.as_str() {
                "effect" => rule.effect = choice(reader, inner, &effects),
                "idempotent" => rule.idempotent = reader.boolean(inner),
                "timeout" => rule.timeout = reader.duration(inner),
                "invalidates" => rule.invalidates = tool_globs(reader, inner),
                "queue" => {
                    rule.queue = reader.duration(inner);
                    written.queue = Some(inner.span.clone());
                }
                "idempotency" => {
                    let channel = idempotency(reader, inner);
                    written.idempotency = Some((inner.node.span.clone(), channel.is_some()));
                    rule.idempotency = channel.unwrap_or_default();
                }
                _ => {}
            }
        }
        written.check(&tool.key, &rule, &mut reader.problems);
        if let (Channel::Header(_), Some((span, _))) = (&rule.idempotency, written.idempotency) {
            server.key_header_span.get_or_insert(span);
        }
        server.tools.insert(tool.key.clone(), rule);
    }
}

impl Written {
    /// Writes down what cannot be queued as the entry says.
    fn check(&self, tool: &str, rule: &ToolRule, problems: &mut Vec<Problem>) {
        let tool = tool.escape_debug();
        let Some(queue) = &self.queue else {
            if let (Some((span, true)), true) =
                (&self.idempotency, rule.idempotency != Channel::None)
            {
                let message = format!("`idempotency` of `{tool}` has no use without `queue`");
                let problem = Problem::new(span.clone(), message, "only queued calls have a key");
                problems.push(problem.help("add queue = \"24h\", or remove it"));
            }
            return;
        };
        if rule.queue.is_none() {
            // What could not be read is told already.
            return;
        }
        if rule.effect == Some(Effect::Read) {
            let message = format!("`{tool}` is a read, so its calls cannot be queued");
            let label = "what a read gives is wanted now";
            let problem = Problem::new(queue.clone(), message, label);
            problems.push(problem.help("remove it, or say effect = \"write\""));
            return;
        }
        let is_read = self.idempotency.as_ref().is_none_or(|(_, read)| *read);
        let can_repeat = rule.idempotency != Channel::None || rule.idempotent == Some(true);
        if is_read && !can_repeat {
            let message =
                format!("calls of `{tool}` cannot be queued: repeated, they may run twice");
            let label = "how does the server know a repeated call?";
            let problem = Problem::new(queue.clone(), message, label);
            problems.push(problem.help(
                "add idempotency = \"argument:NAME\", \"header:NAME\" or \"meta\" if the server \
                 knows a call again by such a key, or idempotent = true if running it twice is \
                 like running it once",
            ));
        }
    }
}

fn idempotency(reader: &mut Reader, entry: &Entry) -> Option<Channel> {
    let expected = "\"argument:NAME\", \"header:NAME\", \"meta\" or \"none\"";
    reader.parsed(entry, expected, |text| match text.split_once(':') {
        None if text == "meta" => Some(Channel::Meta),
        None if text == "none" => Some(Channel::None),
        Some(("argument", name)) if is_argument(name) => Some(Channel::Argument(name.into())),
        Some(("header", name)) => header(name).map(Channel::Header),
        _ => None,
    })
}

fn is_argument(name: &str) -> bool {
    (1..=ARGUMENT_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control)
}

/// A header that is neither ours nor a credential.
fn header(name: &str) -> Option<Arc<str>> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let taken = OUR_HEADERS.iter().chain(&CREDENTIALS);
    let is_free = taken.into_iter().all(|taken| *taken != name.as_str());
    is_free.then(|| name.as_str().into())
}
