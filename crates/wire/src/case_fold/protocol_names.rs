//! Member names of protocol objects in client messages.

/// The value of a known member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberValue {
    /// A scalar, or protocol objects with checked members.
    Members,
    /// An object with server-chosen keys and protocol objects as values.
    Keyed,
    /// Opaque to the protocol.
    Opaque,
}

use MemberValue::{Keyed, Members, Opaque};

type KnownName = (&'static str, MemberValue);

// Names by length in bytes. No two fold alike.
const OF_2: &[KnownName] = &[("id", Members)];
const OF_3: &[KnownName] = &[
    ("uri", Members),
    ("ref", Members),
    ("url", Members),
    ("ttl", Members),
    ("src", Members),
];
const OF_4: &[KnownName] = &[
    ("name", Members),
    ("task", Members),
    ("type", Members),
    ("code", Members),
    ("data", Opaque),
    ("role", Members),
    ("text", Members),
    ("form", Members),
    ("list", Members),
    ("call", Members),
];
const OF_5: &[KnownName] = &[
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
    ("input", Opaque),
];
const OF_6: &[KnownName] = &[
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
const OF_7: &[KnownName] = &[
    ("jsonrpc", Members),
    ("context", Members),
    ("version", Members),
    ("content", Opaque),
    ("message", Members),
    ("taskIds", Members),
];
const OF_8: &[KnownName] = &[
    ("argument", Members),
    ("sampling", Members),
    ("progress", Members),
    ("requests", Members),
    ("mimeType", Members),
    ("metadata", Opaque),
];
const OF_9: &[KnownName] = &[
    ("arguments", Opaque),
    ("requestId", Members),
    ("createdAt", Members),
];
const OF_10: &[KnownName] = &[
    ("clientInfo", Members),
    ("tracestate", Members),
    ("extensions", Members),
    ("stopReason", Members),
    ("websiteUrl", Members),
    ("nextCursor", Members),
    ("resultType", Members),
];
const OF_11: &[KnownName] = &[
    ("traceparent", Members),
    ("elicitation", Members),
    ("listChanged", Members),
    ("description", Members),
];
const OF_12: &[KnownName] = &[
    ("capabilities", Members),
    ("requestState", Members),
    ("pollInterval", Members),
    ("experimental", Opaque),
];
const OF_13: &[KnownName] = &[
    ("progressToken", Members),
    ("notifications", Members),
    ("elicitationId", Members),
    ("lastUpdatedAt", Members),
    ("statusMessage", Members),
    ("createMessage", Members),
];
const OF_14: &[KnownName] = &[("inputResponses", Keyed)];
const OF_15: &[KnownName] = &[("protocolVersion", Members), ("dev.bowline/run", Members)];
const OF_16: &[KnownName] = &[("toolsListChanged", Members)];
const OF_17: &[KnownName] = &[("structuredContent", Opaque)];
const OF_18: &[KnownName] = &[
    ("promptsListChanged", Members),
    ("dev.bowline/server", Members),
];
const OF_20: &[KnownName] = &[("resourcesListChanged", Members)];
const OF_21: &[KnownName] = &[("resourceSubscriptions", Members)];
const OF_26: &[KnownName] = &[("dev.bowline/idempotencyKey", Members)];
const OF_29: &[KnownName] = &[("io.modelcontextprotocol/tasks", Members)];
const OF_32: &[KnownName] = &[("io.modelcontextprotocol/logLevel", Members)];
const OF_34: &[KnownName] = &[
    ("io.modelcontextprotocol/clientInfo", Members),
    ("io.modelcontextprotocol/serverInfo", Members),
];
const OF_36: &[KnownName] = &[("io.modelcontextprotocol/related-task", Members)];
const OF_38: &[KnownName] = &[("io.modelcontextprotocol/subscriptionId", Members)];
const OF_39: &[KnownName] = &[("io.modelcontextprotocol/protocolVersion", Members)];
const OF_42: &[KnownName] = &[("io.modelcontextprotocol/clientCapabilities", Members)];

/// Returns the names of one length in bytes.
const fn names_of_length(len: usize) -> &'static [KnownName] {
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

/// Bound on the length of known names.
#[cfg(test)]
pub(super) const NAME_BYTES_MAX: usize = 64;

/// Returns every known name.
#[cfg(test)]
pub(super) fn all_names() -> impl Iterator<Item = (usize, &'static str)> {
    (0..=NAME_BYTES_MAX).flat_map(|len| {
        names_of_length(len)
            .iter()
            .map(move |(name, _)| (len, *name))
    })
}

/// Returns the value type of a member; `None` for an unknown name.
#[inline]
pub(crate) fn member_value(name: &[u8]) -> Option<MemberValue> {
    let mut known = names_of_length(name.len()).iter();
    known.find_map(|(known, holds)| (known.as_bytes() == name).then_some(*holds))
}

/// Whether a folded name equals the fold of a known name.
pub(crate) fn is_known_folded(folded: &[u8]) -> bool {
    let mut known = names_of_length(folded.len()).iter();
    known.any(|(known, _)| known.as_bytes().eq_ignore_ascii_case(folded))
}
