//! Days and times of the calendar, in UTC.

/// Milliseconds of a day.
pub(crate) const DAY_MS: u64 = 86_400_000;

/// Returns a time with its day.
pub(crate) fn shown(at_ms: u64) -> String {
    let (year, month, day) = civil(at_ms / DAY_MS);
    let rest = at_ms % DAY_MS;
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, millis) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns how many days lie between the beginning of 1970 and that of a month.
pub(crate) fn days_before(year: u64, month: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    (1..month).fold(years, |days, month| days + days_of(year, month))
}

fn days_of(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns year, month and day of a day since 1970.
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    // Never more than a year too late, and never too early.
    let mut year = 1970 + days / 366;
    while days_before(year + 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days_before(year, month + 1) <= days {
        month += 1;
    }
    (year, month, days - days_before(year, month) + 1)
}
