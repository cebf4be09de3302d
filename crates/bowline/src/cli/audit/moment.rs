//! Times as people write and read them, in UTC.

use super::Failure;
use crate::civil::{DAY_MS, civil, days_before};
use crate::config::duration;

/// Reads a time: a date, a date with a time of day, or how long ago.
pub(super) fn read(text: Option<&str>, now_ms: u64) -> Result<Option<u64>, Failure> {
    let Some(text) = text else {
        return Ok(None);
    };
    let ago = duration::parse(text).map(bowline_core::time::millis);
    let ago = ago.map(|ago| now_ms.saturating_sub(ago));
    let time = ago.or_else(|| parse(text));
    let wanted = "a time is 2026-05-01, 2026-05-01T12:30:00Z (UTC), or 2h for two hours ago";
    time.map(Some).ok_or_else(|| Failure::usage(wanted))
}

fn parse(text: &str) -> Option<u64> {
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
    let days = days_before(year, month) + day - 1;
    // A day that its month does not have would be one of the next.
    if day > 31 || civil(days) != (year, month, day) {
        return None;
    }
    Some(days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::civil::shown;

    #[test]
    fn times_are_read_and_shown_in_the_same_way() {
        for (text, shown_as) in [
            ("1970-01-01", "1970-01-01T00:00:00.000Z"),
            ("2000-02-29T23:59:59Z", "2000-02-29T23:59:59.000Z"),
            ("2026-12-31 12:30", "2026-12-31T12:30:00.000Z"),
            ("2100-03-01", "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(shown(parse(text).unwrap()), shown_as);
        }
        // date -ud '2026-05-01 12:30:00' +%s
        assert_eq!(parse("2026-05-01T12:30:00Z"), Some(1_777_638_600_000));
        for wrong in [
            "2026-02-29",
            "2100-02-29",
            "2026-13-01",
            "2026-05-01T24:00",
            "x",
            "",
            "1-1",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(read(Some("2h"), 10_000_000).unwrap(), Some(2_800_000));
        assert!(read(Some("later"), 0).is_err());
        assert_eq!(read(None, 0).unwrap(), None);
    }
}
