//! Hexadecimal encoding.

/// Returns two lower-case digits per byte.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let pairs = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    pairs
        .filter_map(|half| char::from_digit(u32::from(half), 16))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(to_hex(&[]), "");
        assert_eq!(to_hex(&[0, 9, 10, 0x7f, 0xff]), "00090a7fff");
    }
}
