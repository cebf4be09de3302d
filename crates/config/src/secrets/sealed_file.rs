//! The on-disk form of the secret store: encrypted, with the key in a separate file.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::state::{self, private_file, random_bytes};

/// Name of the key file in the state directory.
pub(super) const KEY_FILE: &str = "secrets.key";

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// Bytes of a nonce: long enough for random nonces without a limit.
const NONCE_BYTES: usize = 24;

/// Associated data of the seal, so no other sealed data passes for a store.
const SEAL_AAD: &[u8] = b"bowline secret store 2";

/// Version of a sealed store; version 1 is the older plain form.
pub(super) const SEALED_VERSION: u32 = 2;

/// The file: a version and the sealed content.
#[derive(Serialize, Deserialize)]
struct SealedStoreFile {
    v: u32,
    sealed: String,
}

/// Reason why a sealed store cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnsealError {
    /// The key is missing.
    NoKey,
    /// The store was modified or sealed with a different key.
    Changed,
}

impl UnsealError {
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::NoKey => "its key, secrets.key beside it, is missing",
            Self::Changed => "it was changed, or secrets.key is not the key it was written with",
        }
    }
}

/// Returns the path of the store's key.
pub(super) fn key_path(store: &Path) -> PathBuf {
    store.with_file_name(KEY_FILE)
}

/// Seals the content of a store; the key is created when missing.
pub(super) fn seal_store(store: &Path, content: &[u8]) -> Result<Vec<u8>, state::StateError> {
    let path = key_path(store);
    private_file::create_once(&path, || Ok(random_bytes::<KEY_BYTES>()?.to_vec()))?;
    let key = read_key(&path)?.ok_or_else(|| state::StateError::Malformed(path.clone()))?;
    let nonce = random_bytes::<NONCE_BYTES>()?;
    let payload = Payload {
        msg: content,
        aad: SEAL_AAD,
    };
    let sealed = build_cipher(&key).encrypt(&XNonce::from(nonce), payload);
    let sealed = sealed.map_err(|_error| state::StateError::Malformed(store.to_owned()))?;
    let mut nonce_and_sealed = nonce.to_vec();
    nonce_and_sealed.extend_from_slice(&sealed);
    state::to_json_line(&SealedStoreFile {
        v: SEALED_VERSION,
        sealed: STANDARD.encode(nonce_and_sealed),
    })
}

/// Opens the output of [`seal_store`]. The outer error concerns the key file, the inner one the
/// store.
pub(super) fn open_sealed_store(
    store: &Path,
    bytes: &[u8],
) -> Result<Result<Zeroizing<Vec<u8>>, UnsealError>, state::StateError> {
    let Some(key) = read_key(&key_path(store))? else {
        return Ok(Err(UnsealError::NoKey));
    };
    let opened = || {
        let file: SealedStoreFile = serde_json::from_slice(bytes).ok()?;
        let whole = STANDARD.decode(file.sealed).ok()?;
        let (nonce, sealed) = whole.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload {
            msg: sealed,
            aad: SEAL_AAD,
        };
        build_cipher(&key)
            .decrypt(&XNonce::from(*nonce), payload)
            .ok()
    };
    Ok(opened().map(Zeroizing::new).ok_or(UnsealError::Changed))
}

fn build_cipher(key: &Zeroizing<[u8; KEY_BYTES]>) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(**key))
}

fn read_key(path: &Path) -> Result<Option<Zeroizing<[u8; KEY_BYTES]>>, state::StateError> {
    let Some(bytes) = private_file::read_private(path, KEY_BYTES as u64)?.map(Zeroizing::new)
    else {
        return Ok(None);
    };
    let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice());
    let key = key.map_err(|_error| state::StateError::Malformed(path.to_owned()))?;
    Ok(Some(Zeroizing::new(key)))
}
