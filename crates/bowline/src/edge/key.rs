//! The idempotency key that a caller gave to a call.

use std::sync::Arc;

use bowline_core::lane::KEY_META;
use bowline_wire::object;

/// Characters of a key.
const KEY_CHARS_MAX: usize = 256;

/// What is wrong with a key that cannot be read. Without it the call might run twice, so it is
/// never ignored.
pub(super) const MALFORMED: &str =
    "an idempotency key is a string of 1 to 256 visible ASCII characters";

/// Says that a key was given that cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads the key of a call from its `_meta`.
pub(super) fn read(meta: Option<&[u8]>) -> Result<Option<Arc<str>>, Malformed> {
    let Some((meta, at)) = meta.and_then(|meta| Some((meta, object::field(meta, KEY_META)?)))
    else {
        return Ok(None);
    };
    let key = object::string(at.of(meta)).ok_or(Malformed)?;
    of(&key).map(Some)
}

/// Takes a text as a key.
pub(super) fn of(text: &str) -> Result<Arc<str>, Malformed> {
    let fits = (1..=KEY_CHARS_MAX).contains(&text.len());
    match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.into()),
        false => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(meta: &str) -> Result<Option<Arc<str>>, Malformed> {
        read(Some(meta.as_bytes()))
    }

    #[test]
    fn a_key_is_read_from_the_call_and_one_that_is_none_is_not_ignored() {
        assert_eq!(read(None), Ok(None));
        assert_eq!(said("{}"), Ok(None));
        let key = |text: &str| format!(r#"{{"dev.bowline/idempotencyKey":{text}}}"#);
        assert_eq!(said(&key(r#""order-7""#)), Ok(Some("order-7".into())));
        let longest = format!("\"{}\"", "k".repeat(KEY_CHARS_MAX));
        assert!(said(&key(&longest)).is_ok_and(|read| read.is_some()));
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
            assert_eq!(said(&key(wrong)), Err(Malformed), "{wrong}");
        }
    }
}
