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

/// The names of one length, in bytes. No two fold alike.
const fn of_length(len: usize) -> &'static [Known] {
    match len {
        2 => &[("id", Members)],
        3 => &[
            ("uri", Members),
            ("ref", Members),
            ("url", Members),
            ("ttl", Members),
            ("src", Members),
        ],
        4 => &[
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
        ],
        5 => &[
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
        ],
        6 => &[
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
        ],
        7 => &[
            ("jsonrpc", Members),
            ("context", Members),
            ("version", Members),
            ("content", Anything),
            ("message", Members),
            ("taskIds", Members),
        ],
        8 => &[
            ("argument", Members),
            ("sampling", Members),
            ("progress", Members),
            ("requests", Members),
            ("mimeType", Members),
            ("metadata", Anything),
        ],
        9 => &[
            ("arguments", Anything),
            ("requestId", Members),
            ("createdAt", Members),
        ],
        10 => &[
            ("clientInfo", Members),
            ("tracestate", Members),
            ("extensions", Members),
            ("stopReason", Members),
            ("websiteUrl", Members),
            ("nextCursor", Members),
            ("resultType", Members),
        ],
        11 => &[
            ("traceparent", Members),
            ("elicitation", Members),
            ("listChanged", Members),
            ("description", Members),
        ],
        12 => &[
            ("capabilities", Members),
            ("requestState", Members),
            ("pollInterval", Members),
            ("experimental", Anything),
        ],
        _ => of_greater_length(len),
    }
}

const fn of_greater_length(len: usize) -> &'static [Known] {
    match len {
        13 => &[
            ("progressToken", Members),
            ("notifications", Members),
            ("elicitationId", Members),
            ("lastUpdatedAt", Members),
            ("statusMessage", Members),
            ("createMessage", Members),
        ],
        14 => &[("inputResponses", Keyed)],
        15 => &[("protocolVersion", Members), ("dev.bowline/run", Members)],
        16 => &[("toolsListChanged", Members)],
        17 => &[("structuredContent", Anything)],
        18 => &[
            ("promptsListChanged", Members),
            ("dev.bowline/server", Members),
        ],
        20 => &[("resourcesListChanged", Members)],
        21 => &[("resourceSubscriptions", Members)],
        26 => &[("dev.bowline/idempotencyKey", Members)],
        29 => &[("io.modelcontextprotocol/tasks", Members)],
        32 => &[("io.modelcontextprotocol/logLevel", Members)],
        34 => &[
            ("io.modelcontextprotocol/clientInfo", Members),
            ("io.modelcontextprotocol/serverInfo", Members),
        ],
        36 => &[("io.modelcontextprotocol/related-task", Members)],
        38 => &[("io.modelcontextprotocol/subscriptionId", Members)],
        39 => &[("io.modelcontextprotocol/protocolVersion", Members)],
        42 => &[("io.modelcontextprotocol/clientCapabilities", Members)],
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
