//! Upstream idempotency keys: a keyed hash binds each client key to its principal.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::hex::to_hex;

/// Bytes of the HMAC secret.
pub const SCOPE_SECRET_BYTES: usize = 32;

/// Bytes of a scoped key, written as twice as many hex digits.
const SCOPED_BYTES: usize = 16;

/// Bytes of one block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// Maps (principal, client key) to the upstream key. All principals share one credential at a
/// server, so equal keys of two principals must differ upstream. The secret separates the keys of
/// two gateways; the mapping is stable as long as the secret.
#[derive(Clone)]
pub struct KeyScope(Zeroizing<[u8; SCOPE_SECRET_BYTES]>);

impl KeyScope {
    /// Uses this secret.
    #[must_use]
    pub fn new(secret: [u8; SCOPE_SECRET_BYTES]) -> Self {
        Self(Zeroizing::new(secret))
    }

    /// Derives a secret for this purpose from a shared secret.
    #[must_use]
    pub fn from_shared_secret(secret: &[u8; SCOPE_SECRET_BYTES]) -> Self {
        Self::new(hmac_sha256(secret, &[b"bowline idempotency key 1"]))
    }

    /// Returns the upstream key: 32 hex digits of an HMAC-SHA256.
    #[must_use]
    pub fn scope_key(&self, principal: &str, key: &str) -> Arc<str> {
        // The length prefix separates ("ab", "c") from ("a", "bc").
        let length = u64::try_from(principal.len()).unwrap_or(u64::MAX);
        let parts = [
            &length.to_le_bytes()[..],
            principal.as_bytes(),
            key.as_bytes(),
        ];
        let full = hmac_sha256(&self.0, &parts);
        to_hex(full.get(..SCOPED_BYTES).unwrap_or(&full)).into()
    }
}

/// Without a secret: keys differ between principals, but not between gateways.
impl Default for KeyScope {
    fn default() -> Self {
        Self::new([0; SCOPE_SECRET_BYTES])
    }
}

impl fmt::Debug for KeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyScope(…)")
    }
}

/// HMAC-SHA256 (RFC 2104) of a message in parts, with a key shorter than a block.
fn hmac_sha256(key: &[u8; SCOPE_SECRET_BYTES], message: &[&[u8]]) -> [u8; 32] {
    let pad = |with: u8| {
        let mut block = Zeroizing::new([with; BLOCK_BYTES]);
        for (to, from) in block.iter_mut().zip(key) {
            *to ^= from;
        }
        block
    };
    let mut inner = Sha256::new();
    inner.update(pad(0x36).as_slice());
    for part in message {
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(pad(0x5c).as_slice());
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_matches_known_vector() {
        // RFC 4231, case 1, with a 20-byte key: shorter keys are padded with zeros.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let sum = hmac_sha256(&key, &[b"Hi ", b"There"]);
        let want = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(to_hex(&sum), want);
    }

    #[test]
    fn scoped_keys_differ_by_principal_key_and_gateway() {
        let scope = KeyScope::from_shared_secret(&[7; 32]);
        let key = scope.scope_key("ann", "k");
        assert_eq!(key.len(), 2 * SCOPED_BYTES);
        assert_eq!(
            key,
            KeyScope::from_shared_secret(&[7; 32]).scope_key("ann", "k")
        );
        for other in [
            scope.scope_key("bob", "k"),
            scope.scope_key("ann", "j"),
            scope.scope_key("an", "nk"),
            scope.scope_key("", "annk"),
            KeyScope::from_shared_secret(&[8; 32]).scope_key("ann", "k"),
            KeyScope::default().scope_key("ann", "k"),
        ] {
            assert_ne!(key, other);
        }
        // A scoped key used as a client key maps to a different key.
        assert_ne!(scope.scope_key("ann", &key), key);
        assert_eq!(format!("{scope:?}"), "KeyScope(…)");
    }
}
