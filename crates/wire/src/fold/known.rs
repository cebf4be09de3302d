//! The names that members of the protocol's objects have, in what a client sends.

/// What the value of a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A scalar, or objects of the protocol: their members are judged as well.
    Members,
    /// An object whose keys were chosen by a server, and whose values are of the protocol.
    Keyed,
    /// What the protocol leaves to others.
    Anything,
}

use Holds::{Anything, Keyed, Members};

type Known = (&'static str, Holds);

// The names by their length in bytes. No two fold alike.
const OF_2: &[Known] = &[("id", Members)];
const OF_3: &[Known] = &[
    ("uri", Members),
    ("ref", Members),
    ("url", Members),
    ("ttl", Members),
    ("src", Members),
];
const OF_4: &[Known] = &[
    ("name", Members),
    ("task", Members),
    ("type", Members),
    ("code", Members),
    ("data", Anything),
    ("role", Members),
    ("text", Members),
    ("form", Members),
    ("list", Members),
    ("call", Members),
];
const OF_5: &[Known] = &[
    ("_meta", Members),
    ("value", Members),
    ("level", Members),
    ("error", Members),
    ("roots", Members),
    ("title", Members),
    ("model", Members),
    ("tools", Members),
    ("tasks", Members),
    ("icons", Members),
    ("total", Members),
    ("sizes", Members),
    ("theme", Members),
    ("calls", Members),
    ("input", Anything),
];
const OF_6: &[Known] = &[
    ("params", Members),
    ("method", Members),
    ("result", Members),
    ("cursor", Members),
    ("taskId", Members),
    ("action", Members),
    ("reason", Members),
    ("cancel", Members),
    ("create", Members),
    ("status", Members),
];
const OF_7: &[Known] = &[
    ("jsonrpc", Members),
    ("context", Members),
    ("version", Members),
    ("content", Anything),
    ("message", Members),
    ("taskIds", Members),
];
const OF_8: &[Known] = &[
    ("argument", Members),
    ("sampling", Members),
    ("progress", Members),
    ("requests", Members),
    ("mimeType", Members),
    ("metadata", Anything),
];
const OF_9: &[Known] = &[
    ("arguments", Anything),
    ("requestId", Members),
    ("createdAt", Members),
];
const OF_10: &[Known] = &[
    ("clientInfo", Members),
    ("tracestate", Members),
    ("extensions", Members),
    ("stopReason", Members),
    ("websiteUrl", Members),
    ("nextCursor", Members),
    ("resultType", Members),
];
const OF_11: &[Known] = &[
    ("traceparent", Members),
    ("elicitation", Members),
    ("listChanged", Members),
    ("description", Members),
];
const OF_12: &[Known] = &[
    ("capabilities", Members),
    ("requestState", Members),
    ("pollInterval", Members),
    ("experimental", Anything),
];
const OF_13: &[Known] = &[
    ("progressToken", Members),
    ("notifications", Members),
    ("elicitationId", Members),
    ("lastUpdatedAt", Members),
    ("statusMessage", Members),
    ("createMessage", Members),
];
const OF_14: &[Known] = &[("inputResponses", Keyed)];
const OF_15: &[Known] = &[("protocolVersion", Members), ("dev.bowline/run", Members)];
const OF_16: &[Known] = &[("toolsListChanged", Members)];
const OF_17: &[Known] = &[("structuredContent", Anything)];
const OF_18: &[Known] = &[
    ("promptsListChanged", Members),
    ("dev.bowline/server", Members),
];
const OF_20: &[Known] = &[("resourcesListChanged", Members)];
const OF_21: &[Known] = &[("resourceSubscriptions", Members)];
const OF_26: &[Known] = &[("dev.bowline/idempotencyKey", Members)];
const OF_29: &[Known] = &[("io.modelcontextprotocol/tasks", Members)];
const OF_32: &[Known] = &[("io.modelcontextprotocol/logLevel", Members)];
const OF_34: &[Known] = &[
    ("io.modelcontextprotocol/clientInfo", Members),
    ("io.modelcontextprotocol/serverInfo", Members),
];
const OF_36: &[Known] = &[("io.modelcontextprotocol/related-task", Members)];
const OF_38: &[Known] = &[("io.modelcontextprotocol/subscriptionId", Members)];
const OF_39: &[Known] = &[("io.modelcontextprotocol/protocolVersion", Members)];
const OF_42: &[Known] = &[("io.modelcontextprotocol/clientCapabilities", Members)];

/// The names of one length, in bytes.
const fn of_length(len: usize) -> &'static [Known] {
    match len {
        2 => OF_2,
        3 => OF_3,
        4 => OF_4,
        5 => OF_5,
        6 => OF_6,
        7 => OF_7,
        8 => OF_8,
        9 => OF_9,
        10 => OF_10,
        11 => OF_11,
        12 => OF_12,
        13 => OF_13,
        14 => OF_14,
        15 => OF_15,
        16 => OF_16,
        17 => OF_17,
        18 => OF_18,
        20 => OF_20,
        21 => OF_21,
        26 => OF_26,
        29 => OF_29,
        32 => OF_32,
        34 => OF_34,
        36 => OF_36,
        38 => OF_38,
        39 => OF_39,
        42 => OF_42,
        _ => &[],
    }
}

/// The longest known name.
#[cfg(test)]
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Every known name.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (usize, &'static str)> {
    (0..=NAME_BYTES_MAX).flat_map(|len| of_length(len).iter().map(move |(name, _)| (len, *name)))
}

/// Returns what a member of this name holds; nothing where the protocol has no such name.
#[inline]
pub(crate) fn known(name: &[u8]) -> Option<Holds> {
    let mut known = of_length(name.len()).iter();
    known.find_map(|(known, holds)| (known.as_bytes() == name).then_some(*holds))
}

/// Whether a folded name is what a known name folds to.
pub(crate) fn is_known_folded(folded: &[u8]) -> bool {
    let mut known = of_length(folded.len()).iter();
    known.any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(folded))
}
