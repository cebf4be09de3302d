//! Text that only this gateway can make or read: ids of sessions, and what else callers keep.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline_core::call::Scope;
use bowline_core::caller::Abilities;
use bowline_wire::mcp::Revision;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};

/// Bytes of a nonce: long enough to be drawn at random for ever.
const NONCE_BYTES: usize = 24;

/// No id is longer; a longer header value is not looked at.
pub const ID_CHARS_MAX: usize = 512;

/// What something is sealed for. Bound into the seal, so that nothing sealed for one use passes
/// for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The id of a session.
    Session,
    /// The state of a request that its caller is to send again with answers.
    State,
    /// The id of a task.
    Task,
    /// The name of a stream in the ids of its events.
    Stream,
}

impl Use {
    const fn bound(self) -> &'static [u8] {
        match self {
            Self::Session => b"bowline session 1",
            Self::State => b"bowline request state 1",
            Self::Task => b"bowline task 1",
            Self::Stream => b"bowline stream 1",
        }
    }
}

/// What a session id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The principal it was given to.
    pub principal: String,
    /// The credential that opened it; empty for the owner token.
    pub credential: String,
    /// The endpoint it belongs to.
    pub scope: Scope,
    /// The revision agreed on.
    pub revision: Revision,
    /// When it was given out, in seconds since 1970.
    pub issued_s: u64,
    /// What the client can be asked for.
    pub abilities: Abilities,
}

/// Seals and opens.
pub struct Seal(XChaCha20Poly1305);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    /// Returns a seal with this key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(XChaCha20Poly1305::new(&Key::from(*key)))
    }

    /// Seals `text` for one use; `None` when the system gives no randomness.
    #[must_use]
    pub fn close(&self, purpose: Use, text: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let payload = Payload {
            msg: text,
            aad: purpose.bound(),
        };
        let box_ = self.0.encrypt(&XNonce::from(nonce), payload).ok()?;
        let mut sealed = Vec::from(nonce);
        sealed.extend_from_slice(&box_);
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens what was sealed for this use; `None` when this gateway did not seal it.
    #[must_use]
    pub fn disclose(&self, purpose: Use, sealed: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, box_) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload {
            msg: box_,
            aad: purpose.bound(),
        };
        self.0.decrypt(&XNonce::from(*nonce), payload).ok()
    }

    /// Seals a session into an id; `None` when the system gives no randomness.
    #[must_use]
    pub fn seal(&self, sealed: &Sealed) -> Option<String> {
        self.close(Use::Session, &encode(sealed))
    }

    /// Opens an id; `None` when this gateway did not make it.
    #[must_use]
    pub fn open(&self, id: &str) -> Option<Sealed> {
        if id.len() > ID_CHARS_MAX {
            return None;
        }
        decode(&self.disclose(Use::Session, id)?)
    }
}

/// Writes an endpoint as a line: no server has a name with a slash.
#[must_use]
pub fn scope_line(scope: &Scope) -> String {
    match scope {
        Scope::All => String::new(),
        Scope::Server(server) => server.as_ref().to_owned(),
        Scope::Profile(profile) => format!("/{profile}"),
    }
}

/// Time, scope, revision, principal, abilities and credential as lines: none of them holds a line
/// break.
fn encode(sealed: &Sealed) -> Vec<u8> {
    format!(
        "{}\n{}\n{}\n{}\n{}\n{}",
        sealed.issued_s,
        scope_line(&sealed.scope),
        sealed.revision,
        sealed.principal,
        sealed.abilities.bits(),
        sealed.credential,
    )
    .into_bytes()
}

fn decode(text: &[u8]) -> Option<Sealed> {
    let mut lines = std::str::from_utf8(text).ok()?.splitn(6, '\n');
    let issued_s = lines.next()?.parse().ok()?;
    let scope = match lines.next()? {
        "" => Scope::All,
        scope => match scope.strip_prefix('/') {
            Some(profile) => Scope::Profile(profile.into()),
            None => Scope::Server(scope.into()),
        },
    };
    let revision = Revision::parse_legacy(lines.next()?)?;
    let principal = lines.next()?.to_owned();
    // Ids of before clients could be asked end here.
    let abilities = match lines.next() {
        Some(bits) => Abilities::from_bits(bits.parse().ok()?),
        None => Abilities::default(),
    };
    // Those of before there were tokens end here.
    let credential = lines.next().unwrap_or_default().to_owned();
    Some(Sealed {
        principal,
        credential,
        scope,
        revision,
        issued_s,
        abilities,
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::caller::Ability;

    use super::*;

    fn sealed() -> Sealed {
        Sealed {
            principal: "ann".to_owned(),
            credential: "0123456789abcdef".to_owned(),
            scope: Scope::Server("files".into()),
            revision: Revision::V2025_11_25,
            issued_s: 7,
            abilities: Abilities::default().with(Ability::Roots),
        }
    }

    #[test]
    fn an_id_of_before_abilities_or_tokens_were_sealed_opens_with_none() {
        let older = Sealed {
            abilities: Abilities::default(),
            credential: String::new(),
            ..sealed()
        };
        let old = Sealed {
            credential: String::new(),
            ..sealed()
        };
        let bits = old.abilities.bits();
        assert_eq!(decode(b"7\nfiles\n2025-11-25\nann"), Some(older));
        let text = format!("7\nfiles\n2025-11-25\nann\n{bits}");
        assert_eq!(decode(text.as_bytes()), Some(old));
        assert_eq!(decode(b"7\nfiles\n2025-11-25\nowner\nx"), None);
    }

    #[test]
    fn an_id_opens_to_what_was_sealed() {
        let seal = Seal::new(&[7; 32]);
        let id = seal.seal(&sealed()).unwrap();
        assert_eq!(seal.open(&id), Some(sealed()));
        assert_ne!(seal.seal(&sealed()).unwrap(), id, "never the same twice");
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)), "{id}");
    }

    #[test]
    fn a_changed_or_foreign_id_opens_to_nothing() {
        let seal = Seal::new(&[7; 32]);
        let id = seal.seal(&sealed()).unwrap();
        for at in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(seal.open(&forged), None, "byte {at}");
        }
        assert_eq!(Seal::new(&[8; 32]).open(&id), None);
        let other = seal.close(Use::State, &encode(&sealed())).unwrap();
        assert_eq!(seal.open(&other), None, "sealed for another use");
        assert_eq!(seal.open(""), None);
        assert_eq!(seal.open(&"A".repeat(10_000)), None);
    }
}
