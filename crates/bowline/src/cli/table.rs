//! Columns that line up, durations that can be read at a glance.

use super::clean;

/// Rows under a head, each column as wide as its widest cell; the last one runs free.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned))
        .chain(
            rows.iter()
                .map(|row| row.each_ref().map(|cell| clean::line(cell).into_owned())),
        )
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

/// The two largest units of a duration: `2 h 14 m`, `41 s`, `11 ms`.
pub(crate) fn duration(millis: u64) -> String {
    let (seconds, minutes, hours) = (millis / 1_000, millis / 60_000, millis / 3_600_000);
    match (hours / 24, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{millis} ms"),
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, _) => format!("{minutes} m {} s", seconds % 60),
        (0, hours, _, _) => format!("{hours} h {} m", minutes % 60),
        (days, _, _, _) => format!("{days} d {} h", hours % 24),
    }
}

/// `1 server`, `2 servers`.
pub(crate) fn count(number: u64, noun: &str) -> String {
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
    fn columns_line_up() {
        let rows = [
            ["a".to_owned(), "x\ny".to_owned()],
            ["ßß".to_owned(), String::new()],
        ];
        assert_eq!(table(["N", "NOTE"], &rows), "N   NOTE\na   x y\nßß");
    }

    #[test]
    fn durations_show_their_largest_units() {
        for (millis, text) in [
            (11, "11 ms"),
            (41_500, "41 s"),
            (61_000, "1 m 1 s"),
            (8_040_000, "2 h 14 m"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(millis), text);
        }
    }
}
