//! Parses times in UTC.

use super::CliFailure;
use crate::civil::{DAY_MS, civil_date, days_before_month};
use bowline_config::duration;

/// Parses a time: a date, a date with a time of day, or a duration ago.
pub(super) fn parse_time_option(
    text: Option<&str>,
    now_ms: u64,
) -> Result<Option<u64>, CliFailure> {
    let Some(text) = text else {
        return Ok(None);
    };
    let ago = duration::parse_duration(text).map(bowline_core::time::to_millis);
    let ago = ago.map(|ago| now_ms.saturating_sub(ago));
    let time = ago.or_else(|| parse_timestamp(text));
    let expected = "a time is 2026-05-01, 2026-05-01T12:30:00Z (UTC), or 2h for two hours ago";
    time.map(Some).ok_or_else(|| CliFailure::usage(expected))
}

fn parse_timestamp(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut date = date.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute) = (time.next()??, time.next()??);
    let second = time.next().unwrap_or(Some(0))?;
    let is_time = hour < 24 && minute < 60 && second < 60;
    if date.next().is_some() || time.next().is_some() || !is_time {
        return None;
    }
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let days = days_before_month(year, month) + day - 1;
    // A day beyond the end of its month would be a day of the next month.
    if day > 31 || civil_date(days) != (year, month, day) {
        return None;
    }
    Some(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::civil::format_utc;

    #[test]
    fn timestamps_parse_and_format() {
        for (text, shown_as) in [
            ("1970-01-01", "1970-01-01T00:00:00.000Z"),
            ("2000-02-29T23:59:59Z", "2000-02-29T23:59:59.000Z"),
            ("2026-12-31 12:30", "2026-12-31T12:30:00.000Z"),
            ("2100-03-01", "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(format_utc(parse_timestamp(text).unwrap()), shown_as);
        }
        // date -ud '2026-05-01 12:30:00' +%s
        assert_eq!(
            parse_timestamp("2026-05-01T12:30:00Z"),
            Some(1_777_638_600_000)
        );
        for wrong in [
            "2026-02-29",
            "2100-02-29",
            "2026-13-01",
            "2026-05-01T24:00",
            "x",
            "",
            "1-1",
        ] {
            assert_eq!(parse_timestamp(wrong), None, "{wrong}");
        }
        assert_eq!(
            parse_time_option(Some("2h"), 10_000_000).unwrap(),
            Some(2_800_000)
        );
        assert!(parse_time_option(Some("later"), 0).is_err());
        assert_eq!(parse_time_option(None, 0).unwrap(), None);
    }
}
