//! Sizes in text form: `512MB`, `2GiB`.

/// 2^20 bytes.
pub(crate) const MIB: u64 = 1 << 20;

/// 2^40 bytes.
pub(crate) const TIB: u64 = 1 << 40;

/// Units by factors of 1,024 and of 1,000, largest first.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", TIB),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", MIB),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

/// Parses one size in bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*factor)
}

/// Formats a size in the largest unit without a fraction.
pub(crate) fn format_size(bytes: u64) -> String {
    let whole = SIZE_UNITS
        .iter()
        .find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    match whole {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_format() {
        for (text, bytes) in [
            ("2GiB", 2 << 30),
            ("512MB", 512_000_000),
            ("16MiB", 16 << 20),
            ("1KB", 1_000),
            ("7B", 7),
            ("0B", 0),
            ("16TiB", 16 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn invalid_size_is_refused() {
        for text in [
            "",
            "5",
            "GiB",
            "-1B",
            "1.5GiB",
            "5 GiB",
            "5gib",
            "99999999TiB",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
