//! Cache keys of a call: the parts of the request that determine the response.

use std::borrow::Cow;

use bowline_core::cache::{CacheScope, FlightLead, ResultKeyBase, ResultKeys, SubjectSummary};
use bowline_wire::canonical::to_canonical;
use bowline_wire::mcp::meta;
use bowline_wire::object;

use super::{CacheMiss, CacheRequest, StorePolicy};

/// Members of `_meta` without influence on the response: progress token, trace context, protocol
/// version, client info and log level. The gateway's own members have none either.
const META_NEUTRAL: [&str; 7] = [
    "progressToken",
    "traceparent",
    "tracestate",
    "baggage",
    meta::PROTOCOL_VERSION,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
];
const META_OWN_PREFIX: &str = "dev.bowline/";

/// The keys for a lookup.
#[derive(Debug)]
pub(super) struct LookupKeys {
    pub(super) keys: ResultKeys,
    base: ResultKeyBase,
}

impl LookupKeys {
    /// Hashes the relevant parts of a call; `None` for a call that cannot be keyed.
    pub(super) fn from_request(request: CacheRequest<'_>, summary: SubjectSummary) -> Option<Self> {
        let mut lookup = Self {
            keys: ResultKeys::default(),
            base: key_base(request)?,
        };
        lookup.add_missing_keys(request, Some(summary));
        Some(lookup)
    }

    /// Adds the keys that matter by now.
    pub(super) fn add_missing_keys(
        &mut self,
        request: CacheRequest<'_>,
        summary: Option<SubjectSummary>,
    ) {
        let Some(summary) = summary else { return };
        let Self { keys, base } = self;
        if summary.is_relevant(CacheScope::Public) {
            keys.public.get_or_insert_with(|| base.public_key());
        }
        if summary.is_relevant(CacheScope::Private) {
            let principal = &request.call.principal.name;
            keys.private
                .get_or_insert_with(|| base.private_key(principal));
        }
    }

    /// Turns the keys into a miss.
    pub(super) fn into_missed(self, lead: Option<FlightLead>) -> StorePolicy {
        let Self { base, .. } = self;
        StorePolicy::Missed(Box::new(CacheMiss { base, lead }))
    }
}

/// Returns the key material besides the principal. A call with members besides name, arguments and
/// `_meta` has no key: it may continue an earlier call.
pub(super) fn key_base(request: CacheRequest<'_>) -> Option<ResultKeyBase> {
    let params = &request.call.message.params;
    let (mut arguments, mut meta) = (None, None);
    for (key, at) in object::fields(params) {
        match key.as_ref() {
            "name" | "uri" => {}
            "arguments" => arguments = Some(at.slice(params)),
            "_meta" => meta = Some(at.slice(params)),
            _ => return None,
        }
    }
    let arguments = match arguments {
        None | Some(b"{}") => Cow::Borrowed(&b"{}"[..]),
        Some(arguments) => Cow::Owned(to_canonical(arguments).ok()?),
    };
    let mut base = ResultKeyBase::new(
        request.cache_item(),
        &request.route.definition_hash,
        &arguments,
    );
    if let Some(meta) = meta {
        add_meta_members(&mut base, meta)?;
    }
    Some(base)
}

/// Adds the `_meta` members that may influence a server.
fn add_meta_members(base: &mut ResultKeyBase, meta: &[u8]) -> Option<()> {
    let heeded = |key: &str| !META_NEUTRAL.contains(&key) && !key.starts_with(META_OWN_PREFIX);
    let members = object::fields(meta).filter(|(key, _)| heeded(key));
    let mut members: Vec<_> = members.collect();
    members.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (key, at) in members {
        base.add_part(key.as_bytes());
        base.add_part(&to_canonical(at.slice(meta)).ok()?);
    }
    Some(())
}
