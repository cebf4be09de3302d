//! The keys of the broker and of peer rights.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::FeaturePattern;

use super::config_table::config_table;
use super::rule_keys::PrincipalKey;
use super::server_keys::UnexpandedText;
use super::tree_reader::TreeReader;
use crate::broker_config::{BrokerConfig, PeerConfig};
use crate::config_problem::ConfigProblem;
use crate::principal_name::is_principal_name;
use crate::tree::{ConfigEntry, ConfigNode};

/// Range of connected peers.
const PEERS_RANGE: RangeInclusive<u32> = 1..=65_536;

/// Range of mailboxes of a principal.
const MAILBOXES_RANGE: RangeInclusive<u32> = 1..=65_536;

/// Range of messages per second of a principal, and of the burst.
const DELIVER_RANGE: RangeInclusive<u32> = 1..=1_000_000;

/// Range of live requests of a peer.
const REQUESTS_RANGE: RangeInclusive<u32> = 1..=65_536;

/// Range of delivery attempts.
const ATTEMPTS_RANGE: RangeInclusive<u32> = 1..=1_000;

/// Maximum default time to live of a message.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Maximum entries of a list of a peer's rights.
const RIGHTS_MAX: usize = 64;

/// Maximum characters of a message kind.
const KIND_CHARS_MAX: usize = 64;

config_table! {
    /// `[broker]`: the hub of peers.
    pub(super) enum BrokerKey {
        /// Connected peers.
        Peers = "peers" takes "a whole number",
        /// Mailboxes of a principal.
        Mailboxes = "mailboxes" takes "a whole number",
        /// Deliveries of a principal per second.
        DeliverRate = "deliver_rate" takes "a whole number",
        /// Burst of deliveries of a principal.
        DeliverBurst = "deliver_burst" takes "a whole number",
        /// Live requests of a peer.
        Requests = "requests" takes "a whole number",
        /// Delivery attempts of a message.
        Attempts = "attempts" takes "a whole number",
        /// Default time to live of a message.
        Ttl = "ttl" takes "a duration",
        /// Further names of the hub's own mailbox.
        Aliases = "aliases" takes "a list of texts",
    }
}

/// Parses `broker`.
pub(super) fn parse_broker(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> BrokerConfig {
    let mut broker = BrokerConfig::default();
    for (key, entry) in reader.read_table::<BrokerKey>(node, "broker", table_path) {
        let (slot, bounds) = match key {
            BrokerKey::Peers => (&mut broker.peers, &PEERS_RANGE),
            BrokerKey::Mailboxes => (&mut broker.mailboxes, &MAILBOXES_RANGE),
            BrokerKey::DeliverRate => (&mut broker.deliver_rate, &DELIVER_RANGE),
            BrokerKey::DeliverBurst => (&mut broker.deliver_burst, &DELIVER_RANGE),
            BrokerKey::Requests => (&mut broker.requests, &REQUESTS_RANGE),
            BrokerKey::Attempts => (&mut broker.attempts, &ATTEMPTS_RANGE),
            BrokerKey::Ttl => {
                broker.ttl = parse_ttl(reader, entry).unwrap_or(broker.ttl);
                continue;
            }
            BrokerKey::Aliases => {
                broker.aliases = parse_list(reader, entry, &ALIASES_WORDING, |text| {
                    is_principal_name(text).then(|| text.into())
                });
                continue;
            }
        };
        *slot = reader.read_count(entry, bounds).unwrap_or(*slot);
    }
    broker
}

fn parse_ttl(reader: &mut TreeReader, entry: &ConfigEntry) -> Option<Duration> {
    let ttl = reader.read_duration(entry)?;
    if ttl > TTL_MAX {
        let message = "`ttl` must be 30 days (720h) at most";
        let problem = ConfigProblem::new(entry.node.span.clone(), message, "this is longer");
        reader.problems.push(problem);
        return None;
    }
    Some(ttl)
}

/// Parses a key of a peer's rights.
pub(super) fn parse_peer_right(
    reader: &mut TreeReader,
    key: PrincipalKey,
    entry: &ConfigEntry,
    peer: &mut PeerConfig,
) {
    match key {
        PrincipalKey::To => {
            peer.to = parse_list(reader, entry, &TO_WORDING, |text| {
                (text == "*" || is_principal_name(text)).then(|| text.into())
            });
        }
        PrincipalKey::Kinds => {
            peer.kinds = parse_list(reader, entry, &KINDS_WORDING, parse_message_kind)
        }
        PrincipalKey::Offers => {
            peer.offers = parse_list(reader, entry, &OFFERS_WORDING, parse_server_pattern)
        }
        _ => {}
    }
}

/// Wording of problems with list entries.
pub(super) struct ListWording {
    pub(super) problem: &'static str,
    pub(super) label: &'static str,
    pub(super) help: &'static str,
}

const TO_WORDING: ListWording = ListWording {
    problem: "names no principal",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "write names of principals such as \"builder\", or \"*\" for all",
};

const ALIASES_WORDING: ListWording = ListWording {
    problem: "names no mailbox",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "write names that peers send to, such as \"bamboo-orchestrator\"",
};

const KINDS_WORDING: ListWording = ListWording {
    problem: "is no kind of message",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "for instance kinds = [\"mcp_request\", \"mcp_reply\", \"note\"]",
};

const OFFERS_WORDING: ListWording = ListWording {
    problem: "names no server",
    label: "the name of a server, with `*` for any part of it",
    help: "write names of servers such as \"build-*\"",
};

pub(super) fn parse_list<T>(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
    wording: &ListWording,
    read: impl Fn(&str) -> Option<T>,
) -> Vec<T> {
    let texts = reader.read_texts(entry);
    if let Some(excess) = texts.get(RIGHTS_MAX) {
        let message = format!("`{}` has too many entries", entry.key);
        let label = format!("more than {RIGHTS_MAX}");
        let problem = ConfigProblem::new(excess.span.clone(), message, label);
        reader.problems.push(problem);
        return Vec::new();
    }
    let mut values = Vec::with_capacity(texts.len());
    for UnexpandedText { text, span } in texts {
        match read(text.trim()) {
            Some(value) => values.push(value),
            None => {
                let message = format!("`{}` {}", text.escape_debug(), wording.problem);
                let problem = ConfigProblem::new(span, message, wording.label);
                reader.problems.push(problem.with_help(wording.help));
            }
        }
    }
    values
}

fn parse_message_kind(text: &str) -> Option<Arc<str>> {
    let plain =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let fits = (1..=KIND_CHARS_MAX).contains(&text.len());
    (fits && text.chars().all(plain)).then(|| text.into())
}

/// Parses a pattern of server or executor names; a dot or a kind would mean a tool pattern.
pub(super) fn parse_server_pattern(text: &str) -> Option<FeaturePattern> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '*');
    let pattern = FeaturePattern::parse(text).ok()?;
    text.chars().all(plain).then_some(pattern)
}
