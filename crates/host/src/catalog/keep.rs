//! How long what servers offer may be kept by those who asked, and by whom: merged so that it holds
//! for each part.

use std::time::Duration;

use bowline_core::cache::{Hint, Sharing};
use bowline_wire::object;

/// The longest time that is told: what JSON numbers are sure to hold.
const TTL_MAX: Duration = Duration::from_millis((1 << 53) - 1);

/// What holds for nothing at all, and so takes nothing away from what holds for something.
const ANYTHING: Hint = Hint {
    ttl: Duration::MAX,
    sharing: Sharing::Public,
};

/// Reads what a result says of itself; nothing where it does not say both in the right way.
pub(super) fn read(result: &[u8]) -> Option<Hint> {
    let ttl = object::field(result, "ttlMs")?.of(result);
    // A text that begins with a digit is a number in JSON, and not a negative one.
    ttl.first().filter(|byte| byte.is_ascii_digit())?;
    let millis: f64 = std::str::from_utf8(ttl).ok()?.parse().ok()?;
    let ttl = Duration::try_from_secs_f64(millis.floor() / 1_000.0);
    let scope = object::text(result, "cacheScope")?;
    Some(Hint {
        ttl: ttl.unwrap_or(TTL_MAX).min(TTL_MAX),
        sharing: Sharing::read(Some(&scope)),
    })
}

/// Merges what holds for several parts: the shortest time and the strictest sharing. Nothing where
/// a part says nothing; anything where there is no part.
pub(super) fn merged(parts: impl IntoIterator<Item = Option<Hint>>) -> Option<Hint> {
    let mut all = ANYTHING;
    for part in parts {
        let part = part?;
        all.ttl = all.ttl.min(part.ttl);
        if part.sharing == Sharing::Private {
            all.sharing = Sharing::Private;
        }
    }
    Some(all)
}

/// Returns what may be told: nothing is known of what nobody has said anything of.
pub(super) fn told(hint: Option<Hint>) -> Option<Hint> {
    hint.filter(|hint| hint.ttl <= TTL_MAX)
}

/// Returns the same for one principal alone.
pub(crate) fn private(hint: Option<Hint>) -> Option<Hint> {
    hint.map(|hint| Hint {
        sharing: Sharing::Private,
        ..hint
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(millis: u64, sharing: Sharing) -> Option<Hint> {
        let ttl = Duration::from_millis(millis);
        Some(Hint { ttl, sharing })
    }

    #[test]
    fn a_result_says_for_how_long_and_for_whom_or_nothing() {
        use Sharing::{Private, Public};
        for (result, want) in [
            (r#"{"ttlMs":5,"cacheScope":"public"}"#, hint(5, Public)),
            (r#"{"ttlMs":0,"cacheScope":"public"}"#, hint(0, Public)),
            (
                r#"{"ttlMs":1e3,"cacheScope":"private"}"#,
                hint(1_000, Private),
            ),
            (r#"{"ttlMs":7,"cacheScope":"both"}"#, hint(7, Private)),
            (
                r#"{"ttlMs":1e300,"cacheScope":"public"}"#,
                hint((1 << 53) - 1, Public),
            ),
            (r#"{"ttlMs":5}"#, None),
            (r#"{"cacheScope":"public"}"#, None),
            (r#"{"ttlMs":-1,"cacheScope":"public"}"#, None),
            (r#"{"ttlMs":"5","cacheScope":"public"}"#, None),
            (r#"{"ttlMs":null,"cacheScope":"public"}"#, None),
        ] {
            assert_eq!(read(result.as_bytes()), want, "{result}");
        }
    }

    #[test]
    fn the_shortest_time_and_the_strictest_sharing_hold_for_all() {
        use Sharing::{Private, Public};
        let all = merged([hint(5, Public), hint(3, Public), hint(9, Public)]);
        assert_eq!(all, hint(3, Public));
        let all = merged([hint(5, Private), hint(3, Public)]);
        assert_eq!(all, hint(3, Private));
        assert_eq!(merged([hint(5, Public), None]), None);
        assert_eq!(told(merged([])), None, "of nothing nothing is known");
        assert_eq!(told(merged([merged([]), hint(5, Public)])), hint(5, Public));
        assert_eq!(private(hint(5, Public)), hint(5, Private));
    }
}
