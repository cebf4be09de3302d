//! What a server says of how long an answer stays good, and for whom.

use std::time::Duration;

/// Who may be given an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// All who may call the tool.
    Public,
    /// The principal whose call it was.
    Private,
}

impl Sharing {
    /// Reads `cacheScope`: whatever does not clearly say that all may have the answer, keeps it
    /// to the one who asked.
    #[must_use]
    pub fn read(scope: Option<&str>) -> Self {
        match scope {
            Some("public") => Self::Public,
            Some(_) | None => Self::Private,
        }
    }
}

/// How long an answer stays good, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Counted from the start of the call.
    pub ttl: Duration,
    /// For whom.
    pub sharing: Sharing,
}

impl Hint {
    /// Reads `ttlMs`, a JSON text, and `cacheScope`. Nothing where the answer is not to be kept:
    /// for zero, less, a fraction, and what is no number.
    #[must_use]
    pub fn read(ttl_ms: &[u8], scope: Option<&str>, ttl_max: Duration) -> Option<Self> {
        // A text that begins with a digit is a number in JSON, and the words that are numbers in
        // Rust alone do not.
        ttl_ms.first().filter(|byte| byte.is_ascii_digit())?;
        let millis: f64 = std::str::from_utf8(ttl_ms).ok()?.parse().ok()?;
        if millis < 1.0 || millis.is_finite() && millis.fract() != 0.0 {
            return None;
        }
        // What no duration holds is longer than any limit.
        let ttl = Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX);
        Some(Self {
            ttl: ttl.min(ttl_max),
            sharing: Sharing::read(scope),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(3_600);

    fn ttl(text: &str) -> Option<u128> {
        let hint = Hint::read(text.as_bytes(), Some("public"), MAX)?;
        Some(hint.ttl.as_millis())
    }

    #[test]
    fn sec_34_a_poisoned_lifetime_is_clamped_or_not_believed() {
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
    fn only_the_word_public_shares_an_answer() {
        for (scope, want) in [
            (Some("public"), Sharing::Public),
            (Some("private"), Sharing::Private),
            (Some("Public"), Sharing::Private),
            (Some("tenant"), Sharing::Private),
            (Some(""), Sharing::Private),
            (None, Sharing::Private),
        ] {
            assert_eq!(Sharing::read(scope), want, "{scope:?}");
        }
    }
}
