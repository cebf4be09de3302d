//! What is read from a definition beside its name.

use bowline_wire::canonical::canonical;
use bowline_wire::object;
use sha2::{Digest as _, Sha256};

/// Hashes a definition so that the order of its members and the space between them do not count.
pub(super) fn digest(definition: &[u8]) -> [u8; 32] {
    match canonical(definition) {
        Ok(text) => Sha256::digest(&text).into(),
        // A member that comes twice deeper inside: as it is written, then.
        Err(_) => Sha256::digest(definition).into(),
    }
}

/// What a server says of its tool. A hint: nothing unsafe may rest on it alone.
pub(super) fn hinted(definition: &[u8], key: &str) -> Option<bool> {
    let annotations = object::field(definition, "annotations")?.of(definition);
    match object::field(annotations, key)?.of(annotations) {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}
