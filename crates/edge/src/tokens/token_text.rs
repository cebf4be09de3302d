//! The text of a token: `bwl_<id>_<secret>`. The id is public.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use bowline_config::state;
use bowline_core::hex::to_hex;

/// Prefix of every token, so secret scanners can find leaked tokens.
const TOKEN_PREFIX: &str = "bwl_";

/// Random bytes of an id, written as twice as many hex digits.
const ID_BYTES: usize = 8;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Characters of a secret: base64 without padding.
const SECRET_CHARS: usize = 43;

/// A new token.
#[derive(Debug)]
pub(super) struct GeneratedToken {
    pub(super) id: Arc<str>,
    pub(super) text: String,
    pub(super) hash: [u8; 32],
}

/// Generates a token with an unused id.
pub(super) fn generate_token(
    is_taken: impl Fn(&str) -> bool,
) -> Result<GeneratedToken, state::StateError> {
    let secret = URL_SAFE_NO_PAD.encode(state::random_bytes::<SECRET_BYTES>()?);
    let id = loop {
        let id = to_hex(&state::random_bytes::<ID_BYTES>()?);
        if !is_taken(&id) {
            break id;
        }
    };
    Ok(GeneratedToken {
        text: format!("{TOKEN_PREFIX}{id}_{secret}"),
        hash: hash_secret(&secret),
        id: id.into(),
    })
}

/// Splits a token text into id and secret.
pub(super) fn split_token(text: &str) -> Option<(&str, &str)> {
    // An id holds no underscore, but a secret may.
    let (id, secret) = text.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
    (is_token_id(id) && secret.len() == SECRET_CHARS).then_some((id, secret))
}

/// Returns whether the text is a well-formed token id.
pub(super) fn is_token_id(id: &str) -> bool {
    id.len() == 2 * ID_BYTES
        && id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Hashes a secret for storage. Secrets are random, so a plain hash is safe.
pub(super) fn hash_secret(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}
