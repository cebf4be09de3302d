//! Durations in text form: `100ms`, `30s`, `5m`, `1h`.

use std::time::Duration;

/// Maximum duration.
const DAYS_MAX: u64 = 365;

/// Parses one duration.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let millis = number.checked_mul(match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    })?;
    (millis <= DAYS_MAX * 86_400_000).then(|| Duration::from_millis(millis))
}

/// Parses a range such as `100ms..5s`; the start must not exceed the end.
pub fn parse_duration_range(text: &str) -> Option<(Duration, Duration)> {
    let (from, to) = text.split_once("..")?;
    let (from, to) = (parse_duration(from.trim())?, parse_duration(to.trim())?);
    (from <= to).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_unit_parses() {
        for (text, millis) in [
            ("100ms", 100),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("0s", 0),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_duration_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "5 s",
            "5S",
            "99999999999999999999s",
            "400d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn reversed_duration_range_is_refused() {
        let expected = (Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(parse_duration_range("100ms..5s"), Some(expected));
        assert_eq!(parse_duration_range("5s..100ms"), None);
        assert_eq!(parse_duration_range("5s"), None);
    }
}
