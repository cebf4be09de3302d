//! What the answer to a call depends on, as far as the call says it.

use std::borrow::Cow;

use bowline_core::cache::{KeyBase, Keys, Known, Lead, Sharing};
use bowline_wire::canonical::canonical;
use bowline_wire::mcp::meta;
use bowline_wire::object;

use super::Ask;
use super::flight::{Keeping, Looked};

/// Members of `_meta` that change nothing of an answer: they say where it is heard of, who asks
/// in which words, and where it stands in a trace. Those of the gateway itself change nothing
/// either.
const META_NEUTRAL: [&str; 7] = [
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
];
const META_OURS: &str = "dev.bowline/";

/// An answer that is looked for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) keys: Keys,
    base: KeyBase,
}

impl Wanted {
    /// Hashes what the answer to a call depends on, as far as it matters; nothing where that
    /// cannot be told.
    pub(super) fn read(ask: Ask<'_>, known: Known) -> Option<Self> {
        let mut wanted = Self {
            keys: Keys::default(),
            base: base(ask)?,
        };
        wanted.refresh(ask, Some(known));
        Some(wanted)
    }

    /// Hashes what matters by now.
    pub(super) fn refresh(&mut self, ask: Ask<'_>, known: Option<Known>) {
        let Some(known) = known else { return };
        let Self { keys, base } = self;
        if known.matters(Sharing::Public) {
            keys.public.get_or_insert_with(|| base.public());
        }
        if known.matters(Sharing::Private) {
            let principal = &ask.call.principal.name;
            keys.private.get_or_insert_with(|| base.private(principal));
        }
    }

    /// It was not there.
    pub(super) fn looked_for(self, lead: Option<Lead>) -> Keeping {
        let Self { base, .. } = self;
        Keeping::Looked(Box::new(Looked { base, lead }))
    }
}

/// Returns what the answer depends on beside who asks. A call that says more than the name, the
/// arguments and `_meta` is not understood here: it may be the second half of another.
pub(super) fn base(ask: Ask<'_>) -> Option<KeyBase> {
    let params = &ask.call.params;
    let (mut arguments, mut meta) = (None, None);
    for (key, at) in object::fields(params) {
        match key.as_ref() {
            "name" | "uri" => {}
            "arguments" => arguments = Some(at.of(params)),
            "_meta" => meta = Some(at.of(params)),
            _ => return None,
        }
    }
    let arguments = match arguments {
        None | Some(b"{}") => Cow::Borrowed(&b"{}"[..]),
        Some(arguments) => Cow::Owned(canonical(arguments).ok()?),
    };
    let mut base = KeyBase::new(ask.about(), &ask.route.definition, &arguments);
    if let Some(meta) = meta {
        add_meta(&mut base, meta)?;
    }
    Some(base)
}

/// Adds what `_meta` says that a server may heed.
fn add_meta(base: &mut KeyBase, meta: &[u8]) -> Option<()> {
    let heeded = |key: &str| !META_NEUTRAL.contains(&key) && !key.starts_with(META_OURS);
    let members = object::fields(meta).filter(|(key, _)| heeded(key));
    let mut members: Vec<_> = members.collect();
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (key, at) in members {
        base.add(key.as_bytes());
        base.add(&canonical(at.of(meta)).ok()?);
    }
    Some(())
}
