//! Extracts values from the tree by type and collects problems.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::config_table::TableKey;
use super::server_keys::{OptionalDuration, UnexpandedText};
use crate::config_problem::ConfigProblem;
use crate::tree::{ConfigEntry, ConfigNode, ConfigValue};
use crate::{duration, size};
use bowline_core::suggest::nearest_match;

/// Maximum listen addresses.
const LISTEN_MAX: usize = 16;

/// Maximum host names of a gateway.
const NAMES_MAX: usize = 64;

/// Maximum headers of one server.
const HEADERS_MAX: usize = 64;

/// Headers set by the gateway itself.
pub(super) const RESERVED_HEADERS: [&str; 9] = [
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

/// Collects problems while values are extracted.
#[derive(Debug, Default)]
pub(super) struct TreeReader {
    pub(super) problems: Vec<ConfigProblem>,
}

impl TreeReader {
    /// Returns the entries of a table with fixed keys; unknown keys become problems.
    pub(super) fn read_table<'n, K: TableKey>(
        &mut self,
        node: &'n ConfigNode,
        name: &str,
        table_path: &str,
    ) -> Vec<(K, &'n ConfigEntry)> {
        self.read_table_of(node, name, table_path, |_| true)
    }

    /// Like [`read_table`](Self::read_table), with the keys that `is_here` selects.
    pub(super) fn read_table_of<'n, K: TableKey>(
        &mut self,
        node: &'n ConfigNode,
        name: &str,
        table_path: &str,
        is_here: fn(K) -> bool,
    ) -> Vec<(K, &'n ConfigEntry)> {
        let ConfigValue::Table(entries) = &node.value else {
            self.report_expected(node, name, "a table");
            return Vec::new();
        };
        let mut known = Vec::with_capacity(entries.len());
        for entry in entries {
            match K::from_name(&entry.key).filter(|key| is_here(*key)) {
                Some(key) => known.push((key, entry)),
                None => self.report_unknown_key(entry, table_path, is_here),
            }
        }
        known
    }

    /// Returns the entries of a table with user-chosen names as keys.
    pub(super) fn read_named_entries<'n>(
        &mut self,
        node: &'n ConfigNode,
        name: &str,
        max: usize,
    ) -> &'n [ConfigEntry] {
        let ConfigValue::Table(entries) = &node.value else {
            self.report_expected(node, name, "a table");
            return &[];
        };
        if let Some(entry) = entries.get(max) {
            let label = format!("more than {max}");
            let message = format!("`{name}` has too many entries");
            self.problems
                .push(ConfigProblem::new(entry.span.clone(), message, label));
            return &[];
        }
        entries
    }

    fn report_unknown_key<K: TableKey>(
        &mut self,
        entry: &ConfigEntry,
        table_path: &str,
        is_here: fn(K) -> bool,
    ) {
        let key = entry.key.as_str();
        if K::PLANNED.contains(&key) {
            let message = format!("`{key}` in {table_path} is not built yet in this version");
            let problem =
                ConfigProblem::new(entry.span.clone(), message, "known, but not built yet");
            self.problems
                .push(problem.with_help("remove it, or wait for a later version"));
            return;
        }
        let message = format!("unknown key `{}` in {table_path}", key.escape_debug());
        let here = K::KEYS.iter().filter(|declared| is_here(declared.key));
        let names: Vec<&str> = here.map(|declared| declared.name).collect();
        let all = names.iter().chain(K::PLANNED).copied();
        let label = nearest_match(key, all).map_or_else(
            || "not a key here".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        let problem = ConfigProblem::new(entry.span.clone(), message, label);
        self.problems
            .push(problem.with_help(format!("keys here: {}", names.join(", "))));
    }

    pub(super) fn report_wrong_type(&mut self, entry: &ConfigEntry, expected: &str) {
        self.report_expected(&entry.node, &entry.key, expected);
    }

    fn report_expected(&mut self, node: &ConfigNode, name: &str, expected: &str) {
        let message = format!("`{}` must be {expected}", name.escape_debug());
        let label = format!("this is {}", node.value.kind_words());
        self.problems
            .push(ConfigProblem::new(node.span.clone(), message, label));
    }

    fn read_node_text(&mut self, node: &ConfigNode, name: &str) -> Option<UnexpandedText> {
        let ConfigValue::Text(text) = &node.value else {
            self.report_expected(node, name, "a string");
            return None;
        };
        if text.contains('\0') {
            let message = format!("`{name}` holds a NUL, which no process can be given");
            self.problems.push(ConfigProblem::new(
                node.span.clone(),
                message,
                "NUL in here",
            ));
            return None;
        }
        Some(UnexpandedText {
            text: text.clone(),
            span: node.span.clone(),
        })
    }

    pub(super) fn read_text(&mut self, entry: &ConfigEntry) -> Option<UnexpandedText> {
        self.read_node_text(&entry.node, &entry.key)
    }

    pub(super) fn read_texts(&mut self, entry: &ConfigEntry) -> Vec<UnexpandedText> {
        let ConfigValue::List(items) = &entry.node.value else {
            self.report_wrong_type(entry, "a list of strings");
            return Vec::new();
        };
        items
            .iter()
            .filter_map(|item| self.read_node_text(item, &entry.key))
            .collect()
    }

    pub(super) fn read_variables(&mut self, entry: &ConfigEntry) -> Vec<(String, UnexpandedText)> {
        let pairs = self.read_named_entries(&entry.node, "env", usize::MAX);
        let mut variables = Vec::with_capacity(pairs.len());
        for pair in pairs {
            if !is_variable_name(&pair.key) {
                let message = format!("`{}` is no variable name", pair.key.escape_debug());
                self.problems
                    .push(ConfigProblem::new(pair.span.clone(), message, "in `env`"));
            } else if let Some(text) = self.read_text(pair) {
                variables.push((pair.key.clone(), text));
            }
        }
        variables
    }

    pub(super) fn read_headers(
        &mut self,
        entry: &ConfigEntry,
    ) -> Vec<(HeaderName, UnexpandedText)> {
        let mut headers: Vec<(HeaderName, UnexpandedText)> = Vec::new();
        for pair in self.read_named_entries(&entry.node, "headers", HEADERS_MAX) {
            let fault = match HeaderName::from_bytes(pair.key.as_bytes()) {
                Err(_) => "is no header name",
                Ok(name) if RESERVED_HEADERS.contains(&name.as_str()) => "is set by the gateway",
                Ok(name) if headers.iter().any(|(earlier, _)| *earlier == name) => "is given twice",
                Ok(name) => {
                    headers.extend(self.read_text(pair).map(|text| (name, text)));
                    continue;
                }
            };
            let message = format!("`{}` {fault}", pair.key.escape_debug());
            self.problems.push(ConfigProblem::new(
                pair.span.clone(),
                message,
                "in `headers`",
            ));
        }
        headers
    }

    pub(super) fn read_variable_names(&mut self, entry: &ConfigEntry) -> Vec<UnexpandedText> {
        let mut names = self.read_texts(entry);
        names.retain(|name| {
            let is_valid = is_variable_name(&name.text);
            if !is_valid {
                let message = format!("`{}` is no variable name", name.text.escape_debug());
                let problem = ConfigProblem::new(name.span.clone(), message, "in `inherit_env`");
                self.problems.push(problem);
            }
            is_valid
        });
        names
    }

    pub(super) fn read_boolean(&mut self, entry: &ConfigEntry) -> Option<bool> {
        match entry.node.value {
            ConfigValue::Boolean(yes) => Some(yes),
            _ => {
                self.report_wrong_type(entry, "true or false");
                None
            }
        }
    }

    /// Reads a whole number within bounds.
    pub(super) fn read_count(
        &mut self,
        entry: &ConfigEntry,
        bounds: &RangeInclusive<u32>,
    ) -> Option<u32> {
        let number = match entry.node.value {
            ConfigValue::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        };
        let number = number.filter(|number| bounds.contains(number));
        if number.is_none() {
            let (min, max) = (bounds.start(), bounds.end());
            let expected = match *max {
                u32::MAX => format!("a whole number, {min} or more"),
                max => format!("a whole number from {min} to {max}"),
            };
            self.report_out_of_bounds(entry, &expected);
        }
        number
    }

    /// Reads a size in bytes within bounds.
    pub(super) fn read_size(
        &mut self,
        entry: &ConfigEntry,
        bounds: &RangeInclusive<u64>,
    ) -> Option<u64> {
        let (min, max) = (
            size::format_size(*bounds.start()),
            size::format_size(*bounds.end()),
        );
        let expected = format!("a size from {min} to {max} such as \"512MB\" or \"2GiB\"");
        self.read_parsed(entry, &expected, |text| {
            size::parse_size(text).filter(|bytes| bounds.contains(bytes))
        })
    }

    /// Reads a fraction from 0 to 1.
    pub(super) fn read_fraction(&mut self, entry: &ConfigEntry) -> Option<f64> {
        let share = match entry.node.value {
            ConfigValue::Float(share) => Some(share),
            ConfigValue::Integer(0) => Some(0.0),
            ConfigValue::Integer(1) => Some(1.0),
            _ => None,
        };
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        if share.is_none() {
            self.report_out_of_bounds(entry, "a number from 0.0 to 1.0");
        }
        share
    }

    /// Reports a value of the right type but out of bounds.
    fn report_out_of_bounds(&mut self, entry: &ConfigEntry, expected: &str) {
        let message = format!("`{}` must be {expected}", entry.key.escape_debug());
        let label = match entry.node.value {
            ConfigValue::Integer(number) => format!("this is {number}"),
            ref other => format!("this is {}", other.kind_words()),
        };
        self.problems
            .push(ConfigProblem::new(entry.node.span.clone(), message, label));
    }

    /// Reads a duration, or `"off"`.
    pub(super) fn read_optional_duration(
        &mut self,
        entry: &ConfigEntry,
    ) -> Option<OptionalDuration> {
        let expected = "\"off\" or a duration such as \"30s\", \"5m\" or \"1h\"";
        self.read_parsed(entry, expected, |text| match text {
            "off" => Some(OptionalDuration::Off),
            text => duration::parse_duration(text)
                .filter(|duration| !duration.is_zero())
                .map(OptionalDuration::After),
        })
    }

    pub(super) fn read_duration(&mut self, entry: &ConfigEntry) -> Option<Duration> {
        let expected = "a duration such as \"500ms\", \"30s\", \"5m\" or \"1h\"";
        self.read_parsed(entry, expected, |text| {
            duration::parse_duration(text).filter(|duration| !duration.is_zero())
        })
    }

    /// Reads a string with a custom parser.
    pub(super) fn read_parsed<T>(
        &mut self,
        entry: &ConfigEntry,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let parsed = match &entry.node.value {
            ConfigValue::Text(text) => parse(text),
            _ => None,
        };
        if parsed.is_none() {
            let message = format!("`{}` must be {expected}", entry.key);
            let label = match &entry.node.value {
                ConfigValue::Text(_) => "cannot be read as one".to_owned(),
                other => format!("this is {}", other.kind_words()),
            };
            self.problems
                .push(ConfigProblem::new(entry.node.span.clone(), message, label));
        }
        parsed
    }

    /// Reads one address or a list of addresses.
    pub(super) fn read_addresses(&mut self, entry: &ConfigEntry) -> Option<Vec<SocketAddr>> {
        let expected = "an address with a port such as \"127.0.0.1:7331\"";
        self.read_one_or_more(entry, LISTEN_MAX, expected, |text| text.parse().ok())
    }

    pub(super) fn read_host_names(&mut self, entry: &ConfigEntry) -> Vec<Arc<str>> {
        let expected = "the name of a host such as \"hub.example\" or \"hub.example:7331\"";
        let read = |text: &str| is_host_name(text).then(|| Arc::from(text.to_ascii_lowercase()));
        let names = self.read_one_or_more(entry, NAMES_MAX, expected, read);
        names.unwrap_or_default()
    }

    /// Reads one value, or a list of values.
    fn read_one_or_more<T>(
        &mut self,
        entry: &ConfigEntry,
        max: usize,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let nodes = match &entry.node.value {
            ConfigValue::List(items) if !items.is_empty() && items.len() <= max => items.as_slice(),
            _ => std::slice::from_ref(&entry.node),
        };
        let mut values = Vec::with_capacity(nodes.len());
        for node in nodes {
            let entry_of_node = ConfigEntry {
                key: entry.key.clone(),
                span: entry.span.clone(),
                node: node.clone(),
            };
            values.push(self.read_parsed(&entry_of_node, expected, &read));
        }
        values.into_iter().collect()
    }
}

/// Returns whether a text is a valid `Host` header: a name with an optional port.
fn is_host_name(text: &str) -> bool {
    let authority = text.parse::<http::uri::Authority>();
    authority.is_ok_and(|authority| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        !text.ends_with(':') && !text.contains('@') && authority.host().chars().all(plain)
    })
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}
