//! Calendar dates and times in UTC.

/// Milliseconds of a day.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// Formats a time with its date as RFC 3339 with milliseconds.
pub(crate) fn format_utc(at_ms: u64) -> String {
    let (year, month, day) = civil_date(at_ms / DAY_MS);
    let rest = at_ms % DAY_MS;
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, millis) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns the number of days from the start of 1970 to the start of a month.
pub(crate) fn days_before_month(year: u64, month: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    (1..month).fold(years, |days, month| days + days_in_month(year, month))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Converts a day since 1970 into year, month and day.
pub(crate) fn civil_date(days: u64) -> (u64, u64, u64) {
    // A lower bound for the year, at most one year off.
    let mut year = 1970 + days / 366;
    while days_before_month(year + 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days_before_month(year, month + 1) <= days {
        month += 1;
    }
    (year, month, days - days_before_month(year, month) + 1)
}
