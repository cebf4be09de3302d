//! Results as they are kept, and as they are given out again.

use std::time::Duration;

use bowline_core::cache::{Answer, Hint, Hit};
use bowline_core::call::{Body, Origin, Reply};
use bowline_core::era::Era;
use bowline_core::time::millis;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{Edit, Edited};
use bytes::Bytes;
use memchr::memmem::Finder;

/// The member that says how long an answer stays good, as it is nearly always written.
pub(super) const TTL: &[u8] = b"\"ttlMs\"";

/// What a result says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Not how long it stays good, or not clearly.
    Nothing,
    /// That it is a failure, or only half of an answer: it says nothing of other answers.
    Failure,
    /// How long it stays good, and perhaps for whom.
    Good {
        /// Where the number stands.
        ttl_ms: Span,
        /// Where the word stands.
        scope: Option<Span>,
    },
}

/// Reads what a result says of itself.
pub(super) fn said(result: &[u8], ttl: &Finder<'_>) -> Said {
    // Most results say nothing, and are not looked into.
    if ttl.find(result).is_none() {
        return Said::Nothing;
    }
    let (mut ttl_ms, mut scope) = (None, None);
    for (key, at) in object::fields(result) {
        let value = at.of(result);
        match key.as_ref() {
            // What comes twice can be read in two ways.
            "ttlMs" if ttl_ms.is_some() => return Said::Nothing,
            "cacheScope" if scope.is_some() => return Said::Nothing,
            "ttlMs" => ttl_ms = Some(at),
            "cacheScope" => scope = Some(at),
            "isError" if value != b"false" => return Said::Failure,
            "resultType" if object::string(value).as_deref() != Some("complete") => {
                return Said::Failure;
            }
            _ => {}
        }
    }
    ttl_ms.map_or(Said::Nothing, |ttl_ms| Said::Good { ttl_ms, scope })
}

/// Reads how long a result stays good, and for whom; nothing where it is not to be kept.
pub(super) fn hint(
    result: &[u8],
    ttl_ms: Span,
    scope: Option<Span>,
    ttl_max: Duration,
) -> Option<Hint> {
    let scope = scope.and_then(|at| object::string(at.of(result)));
    Hint::read(ttl_ms.of(result), scope.as_deref(), ttl_max)
}

/// Returns a result in memory of its own: what came may be part of something longer.
pub(super) fn answer(result: &[u8], ttl_at: Span, era: Era) -> Answer {
    Answer {
        result: Bytes::copy_from_slice(result),
        ttl_at: ttl_at.start..ttl_at.end,
        era,
    }
}

/// Writes an answer that is given again, under the id of this call. It says how long it is good
/// from now on: whoever keeps it in turn must not keep it twice as long.
pub(super) fn reply(hit: &Hit, id: &Bytes) -> Reply {
    let Answer {
        result,
        ttl_at,
        era,
    } = &hit.answer;
    let mut left = itoa::Buffer::new();
    let left = left.format(millis(hit.left)).as_bytes();
    let (start, end) = (ttl_at.start, ttl_at.end);
    let edits = [Edit {
        at: Span { start, end },
        with: left,
    }];
    let edited = Edited {
        source: result,
        edits: &edits,
    };
    let (head, middle) = (&br#"{"jsonrpc":"2.0","id":"#[..], &br#","result":"#[..]);
    let envelope = head.len() + id.len() + middle.len();
    let mut answer = Vec::with_capacity(envelope + result.len() + left.len() + 1);
    answer.extend_from_slice(head);
    answer.extend_from_slice(id);
    answer.extend_from_slice(middle);
    edited.write(&mut answer);
    let body_at = envelope..answer.len();
    answer.push(b'}');
    Reply {
        answer: answer.into(),
        body_at,
        body: Body::Result,
        origin: Origin::Cached,
        era: *era,
        server: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl_of(result: &str) -> Option<u128> {
        let Said::Good { ttl_ms, scope } = said(result.as_bytes(), &Finder::new(TTL)) else {
            return None;
        };
        let hint = hint(result.as_bytes(), ttl_ms, scope, Duration::MAX)?;
        Some(hint.ttl.as_millis())
    }

    #[test]
    fn no_hint_no_answer_kept() {
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
            assert_eq!(ttl_of(result), None, "{result}");
        }
        for result in [
            r#"{"ttlMs":5}"#,
            r#"{"isError":false, "ttlMs" : 5 ,"content":[]}"#,
            r#"{"ttlMs":5,"resultType":"complete"}"#,
        ] {
            assert_eq!(ttl_of(result), Some(5), "{result}");
        }
    }

    #[test]
    fn an_answer_given_again_has_the_callers_id_and_the_time_that_is_left() {
        let result = br#"{"a": 1.0,"ttlMs" : 60000 ,"b":[]}"#;
        let Said::Good { ttl_ms, .. } = said(result, &Finder::new(TTL)) else {
            panic!("it says how long it is good");
        };
        let hit = Hit {
            answer: answer(result, ttl_ms, Era::Modern),
            left: Duration::from_millis(1_234),
        };
        let reply = reply(&hit, &Bytes::from_static(b"\"x\""));
        let text = std::str::from_utf8(&reply.answer).unwrap();
        let body = r#"{"a": 1.0,"ttlMs" : 1234 ,"b":[]}"#;
        let want = format!(r#"{{"jsonrpc":"2.0","id":"x","result":{body}}}"#);
        assert_eq!(text, want);
        assert_eq!(&text[reply.body_at.clone()], body);
        assert_eq!((reply.origin, reply.body), (Origin::Cached, Body::Result));
        assert_eq!(reply.era, Era::Modern);
    }
}
