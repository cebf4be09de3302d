//! The secret store as it lies on the disk: encrypted, with a key in a file of its own.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::state::{self, file, random};

/// The name of the key in the state directory.
pub(super) const KEY_FILE: &str = "secrets.key";

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// Bytes of a nonce: long enough to be drawn at random for ever.
const NONCE_BYTES: usize = 24;

/// Bound into the seal, so that nothing else that the key sealed passes for a store.
const PURPOSE: &[u8] = b"bowline secret store 2";

/// The version of a sealed store; 1 is the plain form of before.
pub(super) const VERSION: u32 = 2;

/// The file: a version, and all the rest sealed.
#[derive(Serialize, Deserialize)]
struct Sealed {
    v: u32,
    sealed: String,
}

/// Why a sealed store does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// There is no key.
    NoKey,
    /// It was changed, or another key sealed it.
    Changed,
}

impl Unopened {
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::NoKey => "its key, secrets.key beside it, is missing",
            Self::Changed => "it was changed, or secrets.key is not the key it was written with",
        }
    }
}

/// Where the key of a store is.
pub(super) fn key_file(store: &Path) -> PathBuf {
    store.with_file_name(KEY_FILE)
}

/// Seals the content of a store; the key is made where there is none.
pub(super) fn seal(store: &Path, content: &[u8]) -> Result<Vec<u8>, state::Error> {
    let path = key_file(store);
    file::create_once(&path, || Ok(random::<KEY_BYTES>()?.to_vec()))?;
    let key = read_key(&path)?.ok_or_else(|| state::Error::Malformed(path.clone()))?;
    let nonce = random::<NONCE_BYTES>()?;
    let payload = Payload {
        msg: content,
        aad: PURPOSE,
    };
    let sealed = cipher(&key).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.map_err(|_error| state::Error::Malformed(store.to_owned()))?;
    let mut whole = nonce.to_vec();
    whole.extend_from_slice(&sealed);
    state::json(&Sealed {
        v: VERSION,
        sealed: STANDARD.encode(whole),
    })
}

/// Opens what [`seal`] wrote. The outer error is of the key file, the inner one of the store.
pub(super) fn open(
    store: &Path,
    bytes: &[u8],
) -> Result<Result<Zeroizing<Vec<u8>>, Unopened>, state::Error> {
    let Some(key) = read_key(&key_file(store))? else {
        return Ok(Err(Unopened::NoKey));
    };
    let opened = || {
        let file: Sealed = serde_json::from_slice(bytes).ok()?;
        let whole = STANDARD.decode(file.sealed).ok()?;
        let (nonce, sealed) = whole.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload {
            msg: sealed,
            aad: PURPOSE,
        };
        cipher(&key).decrypt(&XNonce::from(*nonce), payload).ok()
    };
    Ok(opened().map(Zeroizing::new).ok_or(Unopened::Changed))
}

fn cipher(key: &Zeroizing<[u8; KEY_BYTES]>) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(**key))
}

fn read_key(path: &Path) -> Result<Option<Zeroizing<[u8; KEY_BYTES]>>, state::Error> {
    let Some(bytes) = file::read_private(path, KEY_BYTES as u64)?.map(Zeroizing::new) else {
        return Ok(None);
    };
    let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice());
    let key = key.map_err(|_error| state::Error::Malformed(path.to_owned()))?;
    Ok(Some(Zeroizing::new(key)))
}
