//! Takes values out of the tree by kind, and writes down everything that does not fit.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::server::{Span, Text};
use crate::config::frame::Problem;
use crate::config::suggest::nearest;
use crate::config::tree::{Entry, Node, Value};
use crate::config::{duration, size};

/// Most addresses a gateway listens on.
const LISTEN_MAX: usize = 16;

/// Names by which a gateway is known to others.
const NAMES_MAX: usize = 64;

/// Most headers one server gets.
const HEADERS_MAX: usize = 64;

/// Headers that say what the gateway itself knows better.
pub(super) const OUR_HEADERS: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// The keys of one table: those that work, and those that are promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    pub(super) built: &'static [&'static str],
    pub(super) planned: &'static [&'static str],
}

/// Collects problems while values are taken.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) problems: Vec<Problem>,
}

impl Reader {
    /// The entries of a table with fixed keys; unknown ones are written down.
    pub(super) fn table<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        place: &str,
        keys: &Keys,
    ) -> &'n [Entry] {
        let Value::Table(entries) = &node.value else {
            self.expected(node, what, "a table");
            return &[];
        };
        for entry in entries {
            self.check_key(entry, place, keys);
        }
        entries
    }

    /// The entries of a table whose keys are names of the user's choice.
    pub(super) fn names<'n>(&mut self, node: &'n Node, what: &str, max: usize) -> &'n [Entry] {
        let Value::Table(entries) = &node.value else {
            self.expected(node, what, "a table");
            return &[];
        };
        if let Some(entry) = entries.get(max) {
            let label = format!("more than {max}");
            let message = format!("`{what}` has too many entries");
            self.problems
                .push(Problem::new(entry.span.clone(), message, label));
            return &[];
        }
        entries
    }

    fn check_key(&mut self, entry: &Entry, place: &str, keys: &Keys) {
        let key = entry.key.as_str();
        if keys.built.contains(&key) {
            return;
        }
        if keys.planned.contains(&key) {
            let message = format!("`{key}` in {place} is not built yet in this version");
            let problem = Problem::new(entry.span.clone(), message, "known, but not built yet");
            self.problems
                .push(problem.help("remove it, or wait for a later version"));
            return;
        }
        let message = format!("unknown key `{}` in {place}", key.escape_debug());
        let all = keys.built.iter().chain(keys.planned).copied();
        let label = nearest(key, all).map_or_else(
            || "not a key here".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        let problem = Problem::new(entry.span.clone(), message, label);
        self.problems
            .push(problem.help(format!("keys here: {}", keys.built.join(", "))));
    }

    pub(super) fn wrong_kind(&mut self, entry: &Entry, expected: &str) {
        self.expected(&entry.node, &entry.key, expected);
    }

    fn expected(&mut self, node: &Node, what: &str, expected: &str) {
        let message = format!("`{}` must be {expected}", what.escape_debug());
        let label = format!("this is {}", node.value.kind());
        self.problems
            .push(Problem::new(node.span.clone(), message, label));
    }

    fn text_of(&mut self, node: &Node, what: &str) -> Option<Text> {
        let Value::Text(text) = &node.value else {
            self.expected(node, what, "a string");
            return None;
        };
        if text.contains('\0') {
            let message = format!("`{what}` holds a NUL, which no process can be given");
            self.problems
                .push(Problem::new(node.span.clone(), message, "NUL in here"));
            return None;
        }
        Some(Text {
            text: text.clone(),
            span: node.span.clone(),
        })
    }

    pub(super) fn text(&mut self, entry: &Entry) -> Option<Text> {
        self.text_of(&entry.node, &entry.key)
    }

    pub(super) fn texts(&mut self, entry: &Entry) -> Vec<Text> {
        let Value::List(items) = &entry.node.value else {
            self.wrong_kind(entry, "a list of strings");
            return Vec::new();
        };
        items
            .iter()
            .filter_map(|item| self.text_of(item, &entry.key))
            .collect()
    }

    pub(super) fn variables(&mut self, entry: &Entry) -> Vec<(String, Text)> {
        let pairs = self.names(&entry.node, "env", usize::MAX);
        let mut variables = Vec::with_capacity(pairs.len());
        for pair in pairs {
            if !is_variable_name(&pair.key) {
                let message = format!("`{}` is no variable name", pair.key.escape_debug());
                self.problems
                    .push(Problem::new(pair.span.clone(), message, "in `env`"));
            } else if let Some(text) = self.text(pair) {
                variables.push((pair.key.clone(), text));
            }
        }
        variables
    }

    pub(super) fn headers(&mut self, entry: &Entry) -> Vec<(HeaderName, Text)> {
        let mut headers: Vec<(HeaderName, Text)> = Vec::new();
        for pair in self.names(&entry.node, "headers", HEADERS_MAX) {
            let fault = match HeaderName::from_bytes(pair.key.as_bytes()) {
                Err(_) => "is no header name",
                Ok(name) if OUR_HEADERS.contains(&name.as_str()) => "is set by the gateway",
                Ok(name) if headers.iter().any(|(known, _)| *known == name) => "is given twice",
                Ok(name) => {
                    headers.extend(self.text(pair).map(|text| (name, text)));
                    continue;
                }
            };
            let message = format!("`{}` {fault}", pair.key.escape_debug());
            self.problems
                .push(Problem::new(pair.span.clone(), message, "in `headers`"));
        }
        headers
    }

    pub(super) fn names_of_variables(&mut self, entry: &Entry) -> Vec<Text> {
        let mut names = self.texts(entry);
        names.retain(|name| {
            let good = is_variable_name(&name.text);
            if !good {
                let message = format!("`{}` is no variable name", name.text.escape_debug());
                let problem = Problem::new(name.span.clone(), message, "in `inherit_env`");
                self.problems.push(problem);
            }
            good
        });
        names
    }

    pub(super) fn boolean(&mut self, entry: &Entry) -> Option<bool> {
        match entry.node.value {
            Value::Boolean(yes) => Some(yes),
            _ => {
                self.wrong_kind(entry, "true or false");
                None
            }
        }
    }

    /// A whole number inside bounds.
    pub(super) fn count_within(
        &mut self,
        entry: &Entry,
        bounds: &RangeInclusive<u32>,
    ) -> Option<u32> {
        let number = match entry.node.value {
            Value::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let number = number.filter(|number| bounds.contains(number));
        if number.is_none() {
            let (min, max) = (bounds.start(), bounds.end());
            let expected = match *max {
                u32::MAX => format!("a whole number, {min} or more"),
                max => format!("a whole number from {min} to {max}"),
            };
            self.unfit(entry, &expected);
        }
        number
    }

    /// A size in bytes inside bounds.
    pub(super) fn size_within(
        &mut self,
        entry: &Entry,
        bounds: &RangeInclusive<u64>,
    ) -> Option<u64> {
        let (min, max) = (size::shown(*bounds.start()), size::shown(*bounds.end()));
        let expected = format!("a size from {min} to {max} such as \"512MB\" or \"2GiB\"");
        self.parsed(entry, &expected, |text| {
            size::parse(text).filter(|bytes| bounds.contains(bytes))
        })
    }

    /// A part of the whole, from 0 to 1.
    pub(super) fn share(&mut self, entry: &Entry) -> Option<f64> {
        let share = match entry.node.value {
            Value::Float(share) => Some(share),
            Value::Integer(0) => Some(0.0),
            Value::Integer(1) => Some(1.0),
            _ => None,
        };
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        if share.is_none() {
            self.unfit(entry, "a number from 0.0 to 1.0");
        }
        share
    }

    /// Writes down a value that may be of the right kind but is out of bounds.
    fn unfit(&mut self, entry: &Entry, expected: &str) {
        let message = format!("`{}` must be {expected}", entry.key.escape_debug());
        let label = match entry.node.value {
            Value::Integer(number) => format!("this is {number}"),
            ref other => format!("this is {}", other.kind()),
        };
        self.problems
            .push(Problem::new(entry.node.span.clone(), message, label));
    }

    /// A duration, or `"off"`.
    pub(super) fn span(&mut self, entry: &Entry) -> Option<Span> {
        let expected = "\"off\" or a duration such as \"30s\", \"5m\" or \"1h\"";
        self.parsed(entry, expected, |text| match text {
            "off" => Some(Span::Off),
            text => duration::parse(text)
                .filter(|duration| !duration.is_zero())
                .map(Span::After),
        })
    }

    pub(super) fn duration(&mut self, entry: &Entry) -> Option<Duration> {
        let expected = "a duration such as \"500ms\", \"30s\", \"5m\" or \"1h\"";
        self.parsed(entry, expected, |text| {
            duration::parse(text).filter(|duration| !duration.is_zero())
        })
    }

    /// A string with a form of its own.
    pub(super) fn parsed<T>(
        &mut self,
        entry: &Entry,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let parsed = match &entry.node.value {
            Value::Text(text) => parse(text),
            _ => None,
        };
        if parsed.is_none() {
            let message = format!("`{}` must be {expected}", entry.key);
            let label = match &entry.node.value {
                Value::Text(_) => "cannot be read as one".to_owned(),
                other => format!("this is {}", other.kind()),
            };
            self.problems
                .push(Problem::new(entry.node.span.clone(), message, label));
        }
        parsed
    }

    /// One address or a list of them.
    pub(super) fn addresses(&mut self, entry: &Entry) -> Option<Vec<SocketAddr>> {
        let expected = "an address with a port such as \"127.0.0.1:7331\"";
        self.one_or_more(entry, LISTEN_MAX, expected, |text| text.parse().ok())
    }

    pub(super) fn names_of_hosts(&mut self, entry: &Entry) -> Vec<Arc<str>> {
        let expected = "the name of a host such as \"hub.example\" or \"hub.example:7331\"";
        let read = |text: &str| is_host(text).then(|| Arc::from(text.to_ascii_lowercase()));
        let names = self.one_or_more(entry, NAMES_MAX, expected, read);
        names.unwrap_or_default()
    }

    /// Reads one value, or a list of some.
    fn one_or_more<T>(
        &mut self,
        entry: &Entry,
        max: usize,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let nodes = match &entry.node.value {
            Value::List(items) if !items.is_empty() && items.len() <= max => items.as_slice(),
            _ => std::slice::from_ref(&entry.node),
        };
        let mut values = Vec::with_capacity(nodes.len());
        for node in nodes {
            let one = Entry {
                key: entry.key.clone(),
                span: entry.span.clone(),
                node: node.clone(),
            };
            values.push(self.parsed(&one, expected, &read));
        }
        values.into_iter().collect()
    }
}

/// Whether it is what a `Host` header may hold: a name, and a port where one is given.
fn is_host(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>();
    authority.is_ok_and(|authority| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        !text.ends_with(':') && !text.contains('@') && authority.host().chars().all(plain)
    })
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}
