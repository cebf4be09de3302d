//! Formats tables, durations, sizes and counts.

use super::clean;

/// Formats rows under a header; each column is as wide as the widest cell, except the last.
pub(crate) fn format_table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned))
        .chain(rows.iter().map(|row| {
            row.each_ref()
                .map(|cell| clean::escape_line(cell).into_owned())
        }))
        .collect();
    let widths: Vec<usize> = (0..N)
        .map(|column| {
            let width = |row: &[String; N]| row.get(column).map_or(0, |cell| cell.chars().count());
            rows.iter().map(width).max().unwrap_or_default()
        })
        .collect();
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect();
    lines.join("\n")
}

/// Formats the two largest units of a duration: `2 h 14 m`, `41 s`, `11 ms`.
pub(crate) fn format_duration(millis: u64) -> String {
    let (seconds, minutes, hours) = (millis / 1_000, millis / 60_000, millis / 3_600_000);
    match (hours / 24, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{millis} ms"),
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, _) => format!("{minutes} m {} s", seconds % 60),
        (0, hours, _, _) => format!("{hours} h {} m", minutes % 60),
        (days, _, _, _) => format!("{days} d {} h", hours % 24),
    }
}

/// Formats a short time with significant digits: `0.3 ms`, `12 ms`, `1.5 s`.
pub(crate) fn format_micros(us: u64) -> String {
    match us {
        0..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..10_000_000 => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
        _ => format_duration(us / 1_000),
    }
}

/// Formats a memory size with significant digits: `412 KiB`, `41 MiB`, `1.5 GiB`.
pub(crate) fn format_size(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", bytes / KIB),
        MIB..GIB => format!("{} MiB", bytes / MIB),
        _ if bytes.is_multiple_of(GIB) => format!("{} GiB", bytes / GIB),
        _ => format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB),
    }
}

/// Formats a fraction as percent: `0`, `0.4`, `100`.
pub(crate) fn format_percent(fraction: f64) -> String {
    let text = format!("{:.1}", fraction * 100.0);
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Formats a count with a noun: `1 server`, `2 servers`.
pub(crate) fn format_count(number: u64, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_aligned() {
        let rows = [
            ["a".to_owned(), "x\ny".to_owned()],
            ["ßß".to_owned(), String::new()],
        ];
        assert_eq!(format_table(["N", "NOTE"], &rows), "N   NOTE\na   x y\nßß");
    }

    #[test]
    fn numbers_show_significant_digits() {
        let times = [0, 340, 9_999, 12_345, 1_500_000, 61_000_000].map(format_micros);
        let expect = ["0.0 ms", "0.3 ms", "9.9 ms", "12 ms", "1.5 s", "1 m 1 s"];
        assert_eq!(times, expect);
        let sizes = [12, 422_000, 43_000_000, 1 << 31, 1_650_000_000].map(format_size);
        assert_eq!(sizes, ["12 B", "412 KiB", "41 MiB", "2 GiB", "1.5 GiB"]);
        let shares = [0.0, 0.004, 0.5, 1.0].map(format_percent);
        assert_eq!(shares, ["0", "0.4", "50", "100"]);
    }

    #[test]
    fn durations_show_two_largest_units() {
        for (millis, text) in [
            (11, "11 ms"),
            (41_500, "41 s"),
            (61_000, "1 m 1 s"),
            (8_040_000, "2 h 14 m"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(format_duration(millis), text);
        }
    }
}
