//! Idempotency keys as servers see them: a keyed hash binds each to the principal that chose it.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::hex::hex;

/// Bytes of the secret that keys the hash.
pub const SCOPE_SECRET_BYTES: usize = 32;

/// Bytes of a scoped key, which is written as twice as many hex digits.
const SCOPED_BYTES: usize = 16;

/// Bytes of one block of SHA-256.
const BLOCK_BYTES: usize = 64;

/// Maps (principal, key of the caller) to the key that a server sees. All principals share one
/// credential at a server, so equal keys of two principals must differ there. The secret keeps the
/// keys of two gateways apart; the mapping is stable as long as the secret is.
#[derive(Clone)]
pub struct KeyScope(Zeroizing<[u8; SCOPE_SECRET_BYTES]>);

impl KeyScope {
    /// Uses this secret.
    #[must_use]
    pub fn new(secret: [u8; SCOPE_SECRET_BYTES]) -> Self {
        Self(Zeroizing::new(secret))
    }

    /// Derives a secret for this use from one that serves others as well.
    #[must_use]
    pub fn derived(secret: &[u8; SCOPE_SECRET_BYTES]) -> Self {
        Self::new(hmac(secret, &[b"bowline idempotency key 1"]))
    }

    /// Returns the key that a server sees: 32 hex digits of an HMAC-SHA256.
    #[must_use]
    pub fn scoped(&self, principal: &str, key: &str) -> Arc<str> {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        let length = u64::try_from(principal.len()).unwrap_or(u64::MAX);
        let parts = [
            &length.to_le_bytes()[..],
            principal.as_bytes(),
            key.as_bytes(),
        ];
        let full = hmac(&self.0, &parts);
        hex(full.get(..SCOPED_BYTES).unwrap_or(&full)).into()
    }
}

/// Without a secret of its own: the keys of principals are apart, those of gateways are not.
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

/// HMAC-SHA256 (RFC 2104) of a message in parts, with a key that is shorter than a block.
fn hmac(key: &[u8; SCOPE_SECRET_BYTES], message: &[&[u8]]) -> [u8; 32] {
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
        // RFC 4231, case 1, with its 20-byte key: shorter keys are padded with zeros.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let sum = hmac(&key, &[b"Hi ", b"There"]);
        let want = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(hex(&sum), want);
    }

    #[test]
    fn scoped_keys_differ_by_principal_key_and_gateway() {
        let scope = KeyScope::derived(&[7; 32]);
        let key = scope.scoped("ann", "k");
        assert_eq!(key.len(), 2 * SCOPED_BYTES);
        assert_eq!(key, KeyScope::derived(&[7; 32]).scoped("ann", "k"));
        for other in [
            scope.scoped("bob", "k"),
            scope.scoped("ann", "j"),
            scope.scoped("an", "nk"),
            scope.scoped("", "annk"),
            KeyScope::derived(&[8; 32]).scoped("ann", "k"),
            KeyScope::default().scoped("ann", "k"),
        ] {
            assert_ne!(key, other);
        }
        // A scoped key that comes back as a caller's own is another one.
        assert_ne!(scope.scoped("ann", &key), key);
        assert_eq!(format!("{scope:?}"), "KeyScope(…)");
    }
}
