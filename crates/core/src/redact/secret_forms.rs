//! Encoded forms of a secret: base64, percent-encoding, JSON escapes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Bits per base64 letter.
const SEXTET_BITS: usize = 6;

/// Returns the encoded forms of a secret: base64 at each of the three offsets, in both alphabets,
/// and percent-encoding as written by common programs. The plain form is not included.
pub(super) fn encoded_forms(secret: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        forms.push(base64_core(secret, before, |bytes| {
            STANDARD_NO_PAD.encode(bytes)
        }));
        forms.push(base64_core(secret, before, |bytes| {
            URL_SAFE_NO_PAD.encode(bytes)
        }));
    }
    for unreserved in ["-._~", "-_.!~*'()", "-._~/"] {
        let upper = percent_encode(secret, unreserved, |out, byte| write!(out, "%{byte:02X}"));
        let lower = percent_encode(secret, unreserved, |out, byte| write!(out, "%{byte:02x}"));
        forms.push(upper.replace("%20", "+"));
        forms.extend([upper, lower]);
    }
    forms.retain(|form| form != secret);
    forms.sort();
    forms.dedup();
    forms
}

/// Returns the base64 letters that encode only the secret when `before` bytes (modulo 3) precede;
/// letters shared with neighbours are left out.
fn base64_core(secret: &str, before: usize, encode: impl Fn(&[u8]) -> String) -> String {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(secret.as_bytes());
    let text = encode(&bytes);
    let first = (before * 8).div_ceil(SEXTET_BITS);
    let end = bytes.len() * 8 / SEXTET_BITS;
    zeroize::Zeroize::zeroize(&mut bytes);
    text.get(first..end).unwrap_or_default().to_owned()
}

fn percent_encode(
    secret: &str,
    unreserved: &str,
    write: impl Fn(&mut String, u8) -> std::fmt::Result,
) -> String {
    let mut out = String::with_capacity(secret.len());
    for byte in secret.bytes() {
        match byte.is_ascii_alphanumeric() || unreserved.as_bytes().contains(&byte) {
            true => out.push(char::from(byte)),
            false => {
                // Writing to a string does not fail.
                let _written = write(&mut out, byte);
            }
        }
    }
    out
}

/// Returns the JSON string spellings of a text in common programs.
pub(super) fn json_forms(text: &str) -> Vec<String> {
    let plain = json_escape(text, |_| false);
    let ascii = json_escape(text, |character| !character.is_ascii());
    let mut forms = vec![plain.replace('/', "\\/"), ascii.replace('/', "\\/")];
    forms.extend([plain, ascii]);
    forms.sort();
    forms.dedup();
    forms
}

/// Writes a text as the inside of a JSON string, with `\u` escapes as required or demanded by
/// `more`.
pub(super) fn json_escape(text: &str, more: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            character if character.is_control() || more(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _written = write!(out, "\\u{unit:04x}");
                }
            }
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_form_is_found_behind_any_prefix() {
        let secret = "S3CRET/canary+9f8e7d";
        let forms = encoded_forms(secret);
        for prefix in ["", "u", "us", "user:", "a longer one: "] {
            for suffix in ["", "!", "!!"] {
                let whole = STANDARD_NO_PAD.encode(format!("{prefix}{secret}{suffix}"));
                assert!(forms.iter().any(|form| whole.contains(form)), "{prefix}");
                let whole = URL_SAFE_NO_PAD.encode(format!("{prefix}{secret}{suffix}"));
                assert!(forms.iter().any(|form| whole.contains(form)), "{prefix}");
            }
        }
        for form in ["S3CRET%2Fcanary%2B9f8e7d", "S3CRET%2fcanary%2b9f8e7d"] {
            assert!(forms.iter().any(|one| one == form), "{forms:?}");
        }
    }

    #[test]
    fn json_forms_cover_slashes_and_non_ascii() {
        let forms = json_forms("a/\"é\n");
        for form in [
            r#"a/\"é\n"#,
            r#"a\/\"é\n"#,
            r#"a/\"\u00e9\n"#,
            r#"a\/\"\u00e9\n"#,
        ] {
            assert!(forms.iter().any(|one| one == form), "{forms:?}");
        }
        assert_eq!(json_forms("plain"), ["plain"]);
    }
}
