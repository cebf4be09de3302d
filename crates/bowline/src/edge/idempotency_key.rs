//! Idempotency keys given by callers.

use std::sync::Arc;

use bowline_core::lane::KEY_META;
use bowline_wire::object;

/// Maximum length of a key.
const KEY_CHARS_MAX: usize = 256;

/// Error text for a malformed key. A malformed key is never ignored, because the call might then
/// run twice.
pub(super) const INVALID_KEY: &str =
    "an idempotency key is a string of 1 to 256 visible ASCII characters";

/// A malformed idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidKey;

/// Reads the key of a call from its `_meta`.
pub(super) fn read_from_meta(meta: Option<&[u8]>) -> Result<Option<Arc<str>>, InvalidKey> {
    let Some((meta, at)) = meta.and_then(|meta| Some((meta, object::field(meta, KEY_META)?)))
    else {
        return Ok(None);
    };
    let key = object::parse_string(at.slice(meta)).ok_or(InvalidKey)?;
    parse_key(&key).map(Some)
}

/// Validates a text as a key.
pub(super) fn parse_key(text: &str) -> Result<Arc<str>, InvalidKey> {
    let fits = (1..=KEY_CHARS_MAX).contains(&text.len());
    match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.into()),
        false => Err(InvalidKey),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(meta: &str) -> Result<Option<Arc<str>>, InvalidKey> {
        read_from_meta(Some(meta.as_bytes()))
    }

    #[test]
    fn malformed_key_is_rejected_not_ignored() {
        assert_eq!(read_from_meta(None), Ok(None));
        assert_eq!(read_text("{}"), Ok(None));
        let key = |text: &str| format!(r#"{{"dev.bowline/idempotencyKey":{text}}}"#);
        assert_eq!(read_text(&key(r#""order-7""#)), Ok(Some("order-7".into())));
        let longest = format!("\"{}\"", "k".repeat(KEY_CHARS_MAX));
        assert!(read_text(&key(&longest)).is_ok_and(|read| read.is_some()));
        let too_long = format!("\"{}\"", "k".repeat(KEY_CHARS_MAX + 1));
        for wrong in [
            "7",
            "null",
            "{}",
            r#""""#,
            r#""a b""#,
            r#""a\nb""#,
            r#""ü""#,
            &too_long,
        ] {
            assert_eq!(read_text(&key(wrong)), Err(InvalidKey), "{wrong}");
        }
    }
}
