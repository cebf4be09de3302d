//! Authenticated encryption for values kept by clients: session ids, request states, task ids,
//! stream names.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline_core::call::EndpointScope;
use bowline_core::client_handle::ClientCapabilities;
use bowline_wire::mcp::Revision;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};

/// Nonce size: large enough for random nonces.
const NONCE_BYTES: usize = 24;

/// Maximum length of a session id; longer header values are ignored.
pub(crate) const ID_CHARS_MAX: usize = 512;

/// Purpose of a sealed value, bound as associated data, so that a value sealed for a purpose is
/// invalid for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealPurpose {
    /// Session id.
    Session,
    /// `requestState` of a continued request.
    State,
    /// Task id.
    Task,
    /// Stream name within event ids.
    Stream,
}

impl SealPurpose {
    const fn associated_data(self) -> &'static [u8] {
        match self {
            Self::Session => b"bowline session 1",
            Self::State => b"bowline request state 1",
            Self::Task => b"bowline task 1",
            Self::Stream => b"bowline stream 1",
        }
    }
}

/// Content of a session id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClaims {
    /// Principal of the session.
    pub principal: String,
    /// Credential that opened the session; empty for the owner token.
    pub credential: String,
    /// Endpoint of the session.
    pub scope: EndpointScope,
    /// Negotiated revision.
    pub revision: Revision,
    /// Issue time in seconds since 1970.
    pub issued_s: u64,
    /// Capabilities of the client.
    pub capabilities: ClientCapabilities,
}

/// Seals and opens values.
pub struct Seal(XChaCha20Poly1305);

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    /// Creates a seal with this key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Self(XChaCha20Poly1305::new(&Key::from(*key)))
    }

    /// Seals `text` for a purpose; `None` without system randomness.
    #[must_use]
    pub fn seal_bytes(&self, purpose: SealPurpose, text: &[u8]) -> Option<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let payload = Payload {
            msg: text,
            aad: purpose.associated_data(),
        };
        let box_ = self.0.encrypt(&XNonce::from(nonce), payload).ok()?;
        let mut sealed = Vec::from(nonce);
        sealed.extend_from_slice(&box_);
        Some(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Opens a value sealed for this purpose; `None` if not sealed by this gateway.
    #[must_use]
    pub fn open_bytes(&self, purpose: SealPurpose, sealed: &str) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, box_) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload {
            msg: box_,
            aad: purpose.associated_data(),
        };
        self.0.decrypt(&XNonce::from(*nonce), payload).ok()
    }

    /// Seals a session into an id; `None` without system randomness.
    #[must_use]
    pub fn seal_session(&self, sealed: &SessionClaims) -> Option<String> {
        self.seal_bytes(SealPurpose::Session, &encode_claims(sealed))
    }

    /// Opens a session id; `None` if not sealed by this gateway.
    #[must_use]
    pub fn open_session(&self, id: &str) -> Option<SessionClaims> {
        if id.len() > ID_CHARS_MAX {
            return None;
        }
        decode_claims(&self.open_bytes(SealPurpose::Session, id)?)
    }
}

/// Encodes an endpoint as a line: server names contain no slash.
#[must_use]
pub(crate) fn scope_line(scope: &EndpointScope) -> String {
    match scope {
        EndpointScope::All => String::new(),
        EndpointScope::Server(server) => server.as_ref().to_owned(),
        EndpointScope::Profile(profile) => format!("/{profile}"),
    }
}

/// Encodes time, scope, revision, principal, capabilities and credential as lines; none of these
/// contains a line break.
fn encode_claims(sealed: &SessionClaims) -> Vec<u8> {
    format!(
        "{}\n{}\n{}\n{}\n{}\n{}",
        sealed.issued_s,
        scope_line(&sealed.scope),
        sealed.revision,
        sealed.principal,
        sealed.capabilities.bits(),
        sealed.credential,
    )
    .into_bytes()
}

fn decode_claims(text: &[u8]) -> Option<SessionClaims> {
    let mut lines = std::str::from_utf8(text).ok()?.splitn(6, '\n');
    let issued_s = lines.next()?.parse().ok()?;
    let scope = match lines.next()? {
        "" => EndpointScope::All,
        scope => match scope.strip_prefix('/') {
            Some(profile) => EndpointScope::Profile(profile.into()),
            None => EndpointScope::Server(scope.into()),
        },
    };
    let revision = Revision::parse_legacy(lines.next()?)?;
    let principal = lines.next()?.to_owned();
    // Ids from before capabilities were sealed end here.
    let client_capabilities = match lines.next() {
        Some(bits) => ClientCapabilities::from_bits(bits.parse().ok()?),
        None => ClientCapabilities::default(),
    };
    // Ids from before tokens existed end here.
    let credential = lines.next().unwrap_or_default().to_owned();
    Some(SessionClaims {
        principal,
        credential,
        scope,
        revision,
        issued_s,
        capabilities: client_capabilities,
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::client_handle::ClientCapability;

    use super::*;

    fn test_claims() -> SessionClaims {
        SessionClaims {
            principal: "ann".to_owned(),
            credential: "0123456789abcdef".to_owned(),
            scope: EndpointScope::Server("files".into()),
            revision: Revision::V2025_11_25,
            issued_s: 7,
            capabilities: ClientCapabilities::default().with_capability(ClientCapability::Roots),
        }
    }

    #[test]
    fn older_ids_open_with_defaults() {
        let older = SessionClaims {
            capabilities: ClientCapabilities::default(),
            credential: String::new(),
            ..test_claims()
        };
        let old = SessionClaims {
            credential: String::new(),
            ..test_claims()
        };
        let bits = old.capabilities.bits();
        assert_eq!(decode_claims(b"7\nfiles\n2025-11-25\nann"), Some(older));
        let text = format!("7\nfiles\n2025-11-25\nann\n{bits}");
        assert_eq!(decode_claims(text.as_bytes()), Some(old));
        assert_eq!(decode_claims(b"7\nfiles\n2025-11-25\nowner\nx"), None);
    }

    #[test]
    fn session_id_round_trips() {
        let seal = Seal::new(&[7; 32]);
        let id = seal.seal_session(&test_claims()).unwrap();
        assert_eq!(seal.open_session(&id), Some(test_claims()));
        assert_ne!(
            seal.seal_session(&test_claims()).unwrap(),
            id,
            "never the same twice"
        );
        assert!(id.bytes().all(|b| (0x21..=0x7e).contains(&b)), "{id}");
    }

    #[test]
    fn forged_session_id_does_not_open() {
        let seal = Seal::new(&[7; 32]);
        let id = seal.seal_session(&test_claims()).unwrap();
        for at in 0..id.len() {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(seal.open_session(&forged), None, "byte {at}");
        }
        assert_eq!(Seal::new(&[8; 32]).open_session(&id), None);
        let other = seal
            .seal_bytes(SealPurpose::State, &encode_claims(&test_claims()))
            .unwrap();
        assert_eq!(seal.open_session(&other), None, "sealed for another use");
        assert_eq!(seal.open_session(""), None);
        assert_eq!(seal.open_session(&"A".repeat(10_000)), None);
    }
}
