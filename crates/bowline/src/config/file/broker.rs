//! The keys that say what the broker takes on, and what its peers may do.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::policy::Pattern;

use super::keys;
use super::reader::Reader;
use super::server::Text;
use crate::config::broker::{BrokerConfig, PeerConfig};
use crate::config::frame::Problem;
use crate::config::tree::{Entry, Node};
use crate::tokens;

/// Peers at once.
const PEERS: RangeInclusive<u32> = 1..=65_536;

/// Mailboxes of one principal.
const MAILBOXES: RangeInclusive<u32> = 1..=65_536;

/// Messages of one principal in a second, and those that may be saved up.
const DELIVER: RangeInclusive<u32> = 1..=1_000_000;

/// Live requests of one peer.
const REQUESTS: RangeInclusive<u32> = 1..=65_536;

/// How often a message is handed out.
const ATTEMPTS: RangeInclusive<u32> = 1..=1_000;

/// How long a message may be kept that does not say so itself.
const TTL_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Entries of one list of a peer's rights.
const RIGHTS_MAX: usize = 64;

/// Characters of the kind of a message.
const KIND_CHARS_MAX: usize = 64;

/// Reads `broker`.
pub(super) fn read(reader: &mut Reader, node: &Node, place: &str) -> BrokerConfig {
    let mut broker = BrokerConfig::default();
    for entry in reader.table(node, "broker", place, &keys::BROKER) {
        let (slot, bounds) = match entry.key.as_str() {
            "peers" => (&mut broker.peers, &PEERS),
            "mailboxes" => (&mut broker.mailboxes, &MAILBOXES),
            "deliver_rate" => (&mut broker.deliver_rate, &DELIVER),
            "deliver_burst" => (&mut broker.deliver_burst, &DELIVER),
            "requests" => (&mut broker.requests, &REQUESTS),
            "attempts" => (&mut broker.attempts, &ATTEMPTS),
            "ttl" => {
                broker.ttl = ttl(reader, entry).unwrap_or(broker.ttl);
                continue;
            }
            "aliases" => {
                broker.aliases = list(reader, entry, &ALIASES, |text| {
                    tokens::is_principal(text).then(|| text.into())
                });
                continue;
            }
            _ => continue,
        };
        *slot = reader.count_within(entry, bounds).unwrap_or(*slot);
    }
    broker
}

fn ttl(reader: &mut Reader, entry: &Entry) -> Option<Duration> {
    let ttl = reader.duration(entry)?;
    if ttl > TTL_MAX {
        let message = "`ttl` must be 30 days (720h) at most";
        let problem = Problem::new(entry.node.span.clone(), message, "this is longer");
        reader.problems.push(problem);
        return None;
    }
    Some(ttl)
}

/// Takes what a key says of a peer.
pub(super) fn right(reader: &mut Reader, entry: &Entry, peer: &mut PeerConfig) {
    match entry.key.as_str() {
        "to" => {
            peer.to = list(reader, entry, &TO, |text| {
                (text == "*" || tokens::is_principal(text)).then(|| text.into())
            });
        }
        "kinds" => peer.kinds = list(reader, entry, &KINDS, kind),
        "offers" => peer.offers = list(reader, entry, &OFFERS, servers),
        _ => {}
    }
}

/// What the entries of a list are, in words.
pub(super) struct Said {
    pub(super) what: &'static str,
    pub(super) label: &'static str,
    pub(super) help: &'static str,
}

const TO: Said = Said {
    what: "names no principal",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "write names of principals such as \"builder\", or \"*\" for all",
};

const ALIASES: Said = Said {
    what: "names no mailbox",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "write names that peers send to, such as \"bamboo-orchestrator\"",
};

const KINDS: Said = Said {
    what: "is no kind of message",
    label: "lower-case letters, digits and `.`, `_`, `-`, at most 64",
    help: "for instance kinds = [\"mcp_request\", \"mcp_reply\", \"note\"]",
};

const OFFERS: Said = Said {
    what: "names no server",
    label: "the name of a server, with `*` for any part of it",
    help: "write names of servers such as \"build-*\"",
};

pub(super) fn list<T>(
    reader: &mut Reader,
    entry: &Entry,
    said: &Said,
    read: impl Fn(&str) -> Option<T>,
) -> Vec<T> {
    let texts = reader.texts(entry);
    if let Some(over) = texts.get(RIGHTS_MAX) {
        let message = format!("`{}` has too many entries", entry.key);
        let label = format!("more than {RIGHTS_MAX}");
        let problem = Problem::new(over.span.clone(), message, label);
        reader.problems.push(problem);
        return Vec::new();
    }
    let mut all = Vec::with_capacity(texts.len());
    for Text { text, span } in texts {
        match read(text.trim()) {
            Some(one) => all.push(one),
            None => {
                let message = format!("`{}` {}", text.escape_debug(), said.what);
                let problem = Problem::new(span, message, said.label);
                reader.problems.push(problem.help(said.help));
            }
        }
    }
    all
}

fn kind(text: &str) -> Option<Arc<str>> {
    let plain =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let fits = (1..=KIND_CHARS_MAX).contains(&text.len());
    (fits && text.chars().all(plain)).then(|| text.into())
}

/// A pattern of names of servers or executors: with a dot or a kind it would be about tools.
pub(super) fn servers(text: &str) -> Option<Pattern> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '*');
    let pattern = Pattern::parse(text).ok()?;
    text.chars().all(plain).then_some(pattern)
}
