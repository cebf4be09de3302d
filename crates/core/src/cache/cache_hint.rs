//! Cache hints of servers: TTL and scope of a result.

use std::time::Duration;

/// The principals allowed to receive a cached result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheScope {
    /// Every principal allowed to call the tool.
    Public,
    /// Only the calling principal.
    Private,
}

impl CacheScope {
    /// Parses `cacheScope`; any value except `public` is private.
    #[must_use]
    pub fn parse(scope: Option<&str>) -> Self {
        match scope {
            Some("public") => Self::Public,
            Some(_) | None => Self::Private,
        }
    }
}

/// TTL and scope of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    /// Counted from the start of the call.
    pub ttl: Duration,
    /// The cache scope.
    pub scope: CacheScope,
}

impl CacheHint {
    /// Parses `ttlMs`, a JSON text, and `cacheScope`. Returns `None` (do not cache) for zero,
    /// negative numbers, fractions and non-numbers.
    #[must_use]
    pub fn parse(ttl_ms: &[u8], scope: Option<&str>, ttl_max: Duration) -> Option<Self> {
        // JSON numbers start with a digit here; the words Rust also parses (`inf`, `nan`) do not.
        ttl_ms.first().filter(|byte| byte.is_ascii_digit())?;
        let millis: f64 = std::str::from_utf8(ttl_ms).ok()?.parse().ok()?;
        if millis < 1.0 || millis.is_finite() && millis.fract() != 0.0 {
            return None;
        }
        // A value beyond `Duration` exceeds every limit.
        let ttl = Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX);
        Some(Self {
            ttl: ttl.min(ttl_max),
            scope: CacheScope::parse(scope),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(3_600);

    fn ttl(text: &str) -> Option<u128> {
        let hint = CacheHint::parse(text.as_bytes(), Some("public"), MAX)?;
        Some(hint.ttl.as_millis())
    }

    #[test]
    fn sec_34_poisoned_ttl_is_clamped_or_ignored() {
        for text in [
            "0", "-1", "-1e18", "0.5", "1.5", "1e-400", "-0", "\"5\"", "null", "true", "[5]", "",
            "{}", "inf", "nan", "1x",
        ] {
            assert_eq!(ttl(text), None, "{text}");
        }
        for (text, want) in [
            ("1", 1),
            ("1000", 1_000),
            ("1000.0", 1_000),
            ("1e3", 1_000),
            ("3600000", 3_600_000),
            ("3600001", 3_600_000),
            ("1e18", 3_600_000),
            ("1000000000000000000", 3_600_000),
            ("99999999999999999999999999", 3_600_000),
            ("1e400", 3_600_000),
        ] {
            assert_eq!(ttl(text), Some(want), "{text}");
        }
    }

    #[test]
    fn only_public_scope_shares_result() {
        for (scope, want) in [
            (Some("public"), CacheScope::Public),
            (Some("private"), CacheScope::Private),
            (Some("Public"), CacheScope::Private),
            (Some("tenant"), CacheScope::Private),
            (Some(""), CacheScope::Private),
            (None, CacheScope::Private),
        ] {
            assert_eq!(CacheScope::parse(scope), want, "{scope:?}");
        }
    }
}
