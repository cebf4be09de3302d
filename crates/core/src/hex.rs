//! Bytes as hexadecimal digits, for people and for files.

/// Returns the digits of `bytes`, two for each, in lower case.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
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
        assert_eq!(hex(&[]), "");
        assert_eq!(hex(&[0, 9, 10, 0x7f, 0xff]), "00090a7fff");
    }
}
