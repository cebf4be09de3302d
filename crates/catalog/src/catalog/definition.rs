//! Digest and annotations of a definition.

use bowline_wire::canonical::to_canonical;
use bowline_wire::object;
use sha2::{Digest as _, Sha256};

/// Hashes a definition independently of member order and whitespace.
pub(super) fn definition_digest(definition: &[u8]) -> [u8; 32] {
    match to_canonical(definition) {
        Ok(text) => Sha256::digest(&text).into(),
        // Nested duplicate member: hash the bytes as written.
        Err(_) => Sha256::digest(definition).into(),
    }
}

/// Reads a tool annotation. Only a hint: safety must not depend on it alone.
pub(super) fn annotation(definition: &[u8], key: &str) -> Option<bool> {
    let annotations = object::field(definition, "annotations")?.slice(definition);
    match object::field(annotations, key)?.slice(annotations) {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}
