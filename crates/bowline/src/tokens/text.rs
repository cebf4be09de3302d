//! The text of a token: `bwl_<id>_<secret>`, of which the id may be seen by anybody.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::state;

/// What every token begins with, so that scanners for lost secrets can find them.
const PREFIX: &str = "bwl_";

/// Random bytes of an id, which is written as twice as many hex digits.
const ID_BYTES: usize = 8;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Characters of a secret: base64 without padding.
const SECRET_CHARS: usize = 43;

/// A new token.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) id: Arc<str>,
    pub(super) text: String,
    pub(super) hash: [u8; 32],
}

/// Draws a token whose id is not taken.
pub(super) fn make(is_taken: impl Fn(&str) -> bool) -> Result<Made, state::Error> {
    let secret = URL_SAFE_NO_PAD.encode(state::random::<SECRET_BYTES>()?);
    let id = loop {
        let id = state::hex(&state::random::<ID_BYTES>()?);
        if !is_taken(&id) {
            break id;
        }
    };
    Ok(Made {
        text: format!("{PREFIX}{id}_{secret}"),
        hash: hash(&secret),
        id: id.into(),
    })
}

/// Returns the id and the secret of a token's text.
pub(super) fn split(text: &str) -> Option<(&str, &str)> {
    // An id holds no underscore; a secret may.
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    (is_id(id) && secret.len() == SECRET_CHARS).then_some((id, secret))
}

/// Whether this may be the id of a token.
pub(super) fn is_id(id: &str) -> bool {
    id.len() == 2 * ID_BYTES
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns what is kept of a secret. It is random, so that a plain hash cannot be undone.
pub(super) fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}
