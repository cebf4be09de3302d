//! Cache hints of lists, merged so that the result holds for every part.

use std::time::Duration;

use bowline_core::cache::{CacheHint, CacheScope};
use bowline_wire::object;

/// Maximum TTL sent to clients: the largest integer safe in JSON.
const TTL_MAX: Duration = Duration::from_millis((1 << 53) - 1);

/// Neutral element of the merge.
const NEUTRAL: CacheHint = CacheHint {
    ttl: Duration::MAX,
    scope: CacheScope::Public,
};

/// Parses the hint of a result; `None` unless both members are valid.
pub(super) fn parse_hint(result: &[u8]) -> Option<CacheHint> {
    let ttl = object::field(result, "ttlMs")?.slice(result);
    // Starts with a digit: a non-negative JSON number.
    ttl.first().filter(|byte| byte.is_ascii_digit())?;
    let millis: f64 = std::str::from_utf8(ttl).ok()?.parse().ok()?;
    let ttl = Duration::try_from_secs_f64(millis.floor() / 1_000.0);
    let scope = object::text_field(result, "cacheScope")?;
    Some(CacheHint {
        ttl: ttl.unwrap_or(TTL_MAX).min(TTL_MAX),
        scope: CacheScope::parse(Some(&scope)),
    })
}

/// Merges the hints of several parts: shortest TTL, strictest scope. `None` if a part has no hint;
/// neutral without parts.
pub(super) fn merge_hints(parts: impl IntoIterator<Item = Option<CacheHint>>) -> Option<CacheHint> {
    let mut all = NEUTRAL;
    for part in parts {
        let part = part?;
        all.ttl = all.ttl.min(part.ttl);
        if part.scope == CacheScope::Private {
            all.scope = CacheScope::Private;
        }
    }
    Some(all)
}

/// Filters the neutral element: without any hint, nothing is known.
pub(super) fn known_hint(hint: Option<CacheHint>) -> Option<CacheHint> {
    hint.filter(|hint| hint.ttl <= TTL_MAX)
}

/// Restricts a hint to a single principal.
pub fn to_private(hint: Option<CacheHint>) -> Option<CacheHint> {
    hint.map(|hint| CacheHint {
        scope: CacheScope::Private,
        ..hint
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_hint(millis: u64, sharing: CacheScope) -> Option<CacheHint> {
        let ttl = Duration::from_millis(millis);
        Some(CacheHint {
            ttl,
            scope: sharing,
        })
    }

    #[test]
    fn hint_requires_valid_ttl_and_scope() {
        use CacheScope::{Private, Public};
        for (result, want) in [
            (r#"{"ttlMs":5,"cacheScope":"public"}"#, some_hint(5, Public)),
            (r#"{"ttlMs":0,"cacheScope":"public"}"#, some_hint(0, Public)),
            (
                r#"{"ttlMs":1e3,"cacheScope":"private"}"#,
                some_hint(1_000, Private),
            ),
            (r#"{"ttlMs":7,"cacheScope":"both"}"#, some_hint(7, Private)),
            (
                r#"{"ttlMs":1e300,"cacheScope":"public"}"#,
                some_hint((1 << 53) - 1, Public),
            ),
            (r#"{"ttlMs":5}"#, None),
            (r#"{"cacheScope":"public"}"#, None),
            (r#"{"ttlMs":-1,"cacheScope":"public"}"#, None),
            (r#"{"ttlMs":"5","cacheScope":"public"}"#, None),
            (r#"{"ttlMs":null,"cacheScope":"public"}"#, None),
        ] {
            assert_eq!(parse_hint(result.as_bytes()), want, "{result}");
        }
    }

    #[test]
    fn merge_takes_shortest_ttl_and_strictest_scope() {
        use CacheScope::{Private, Public};
        let all = merge_hints([
            some_hint(5, Public),
            some_hint(3, Public),
            some_hint(9, Public),
        ]);
        assert_eq!(all, some_hint(3, Public));
        let all = merge_hints([some_hint(5, Private), some_hint(3, Public)]);
        assert_eq!(all, some_hint(3, Private));
        assert_eq!(merge_hints([some_hint(5, Public), None]), None);
        assert_eq!(
            known_hint(merge_hints([])),
            None,
            "of nothing nothing is known"
        );
        assert_eq!(
            known_hint(merge_hints([merge_hints([]), some_hint(5, Public)])),
            some_hint(5, Public)
        );
        assert_eq!(to_private(some_hint(5, Public)), some_hint(5, Private));
    }
}
