//! Reads cache hints from results, and writes cached results as responses.

use std::time::Duration;

use bowline_core::cache::{CacheHint, CacheHit, CachedResult};
use bowline_core::call::{BodyKind, CallReply, ReplyOrigin, ServerResponse};
use bowline_core::era::Era;
use bowline_core::time::to_millis;
use bowline_wire::ByteSpan;
use bowline_wire::jsonrpc::Envelope;
use bowline_wire::object;
use bowline_wire::splice::{ByteEdit, EditedText};
use bytes::Bytes;

/// The member with the TTL, in its usual spelling.
pub(super) const TTL_MEMBER: &[u8] = b"\"ttlMs\"";

/// The cache hint of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultHint {
    /// No TTL, or an ambiguous one.
    Missing,
    /// An error or an incomplete result: says nothing about other results.
    Failure,
    /// A TTL, and possibly a scope.
    Ttl {
        /// Position of the number.
        ttl_ms: ByteSpan,
        /// Position of the scope string.
        scope: Option<ByteSpan>,
    },
}

/// Reads the cache hint of a result.
pub(super) fn read_hint(result: &[u8]) -> ResultHint {
    let (mut ttl_ms, mut scope) = (None, None);
    for (key, at) in object::fields(result) {
        let value = at.slice(result);
        match key.as_ref() {
            // A duplicate member is ambiguous.
            "ttlMs" if ttl_ms.is_some() => return ResultHint::Missing,
            "cacheScope" if scope.is_some() => return ResultHint::Missing,
            "ttlMs" => ttl_ms = Some(at),
            "cacheScope" => scope = Some(at),
            "isError" if value != b"false" => return ResultHint::Failure,
            "resultType" if object::parse_string(value).as_deref() != Some("complete") => {
                return ResultHint::Failure;
            }
            _ => {}
        }
    }
    ttl_ms.map_or(ResultHint::Missing, |ttl_ms| ResultHint::Ttl {
        ttl_ms,
        scope,
    })
}

/// Parses TTL and scope; `None` if the result must not be cached.
pub(super) fn parse_hint(
    result: &[u8],
    ttl_ms: ByteSpan,
    scope: Option<ByteSpan>,
    ttl_max: Duration,
) -> Option<CacheHint> {
    let scope = scope.and_then(|at| object::parse_string(at.slice(result)));
    CacheHint::parse(ttl_ms.slice(result), scope.as_deref(), ttl_max)
}

/// Copies a result into its own allocation: the received bytes may belong to a larger buffer.
pub(super) fn copy_result(result: &[u8], ttl_at: ByteSpan, era: Era) -> CachedResult {
    CachedResult {
        result: Bytes::copy_from_slice(result),
        ttl_at: ttl_at.start..ttl_at.end,
        era,
    }
}

/// Writes a cached result as the response to `id`. The TTL becomes the remaining time: a downstream
/// cache must not double it.
pub(super) fn to_reply(hit: &CacheHit, id: &Bytes) -> CallReply {
    let CachedResult {
        result,
        ttl_at,
        era,
    } = &hit.cached;
    let mut ttl_ms = itoa::Buffer::new();
    let ttl_ms = ttl_ms.format(to_millis(hit.remaining_ttl)).as_bytes();
    let (start, end) = (ttl_at.start, ttl_at.end);
    let edits = [ByteEdit {
        at: ByteSpan { start, end },
        with: ttl_ms.into(),
    }];
    let edited = EditedText {
        source: result,
        edits: &edits,
    };
    let envelope = Envelope::Result { id };
    let mut bytes = Vec::with_capacity(envelope.capacity(result.len() + ttl_ms.len()));
    let body_at = envelope.write(&mut bytes, |out| edited.write(out));
    CallReply {
        response: ServerResponse {
            bytes: bytes.into(),
            body: BodyKind::Result,
            body_at,
            era: *era,
        },
        origin: ReplyOrigin::Cached,
        server: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_ttl_ms(result: &str) -> Option<u128> {
        let ResultHint::Ttl { ttl_ms, scope } = read_hint(result.as_bytes()) else {
            return None;
        };
        let hint = parse_hint(result.as_bytes(), ttl_ms, scope, Duration::MAX)?;
        Some(hint.ttl.as_millis())
    }

    #[test]
    fn result_without_hint_is_not_cached() {
        for result in [
            r#"{"content":[]}"#,
            r#"{"ttlMs":0}"#,
            r#"{"ttlMs":"5"}"#,
            r#"{"ttlMs":5,"isError":true}"#,
            r#"{"ttlMs":5,"isError":"no"}"#,
            r#"{"ttlMs":5,"resultType":"input_required"}"#,
            r#"{"ttlMs":5,"resultType":"task"}"#,
            r#"{"ttlMs":5,"ttlMs":6}"#,
            r#"{"ttlMs":5,"cacheScope":"public","cacheScope":"private"}"#,
            r#"{"content":[{"ttlMs":5}]}"#,
            r#"{"_meta":{"ttlMs":5}}"#,
            r#"["ttlMs",5]"#,
            "5",
        ] {
            assert_eq!(parse_ttl_ms(result), None, "{result}");
        }
        for result in [
            r#"{"ttlMs":5}"#,
            r#"{"isError":false, "ttlMs" : 5 ,"content":[]}"#,
            r#"{"ttlMs":5,"resultType":"complete"}"#,
        ] {
            assert_eq!(parse_ttl_ms(result), Some(5), "{result}");
        }
    }

    #[test]
    fn cached_reply_has_caller_id_and_remaining_ttl() {
        let result = br#"{"a": 1.0,"ttlMs" : 60000 ,"b":[]}"#;
        let ResultHint::Ttl { ttl_ms, .. } = read_hint(result) else {
            panic!("it says how long it is good");
        };
        let hit = CacheHit {
            cached: copy_result(result, ttl_ms, Era::Modern),
            remaining_ttl: Duration::from_millis(1_234),
        };
        let reply = to_reply(&hit, &Bytes::from_static(b"\"x\""));
        let text = std::str::from_utf8(&reply.response.bytes).unwrap();
        let body = r#"{"a": 1.0,"ttlMs" : 1234 ,"b":[]}"#;
        let want = format!(r#"{{"jsonrpc":"2.0","id":"x","result":{body}}}"#);
        assert_eq!(text, want);
        assert_eq!(&text[reply.response.body_at.clone()], body);
        assert_eq!(
            (reply.origin, reply.response.body),
            (ReplyOrigin::Cached, BodyKind::Result)
        );
        assert_eq!(reply.response.era, Era::Modern);
    }
}
