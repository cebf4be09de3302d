//! The hash that binds a row to all rows before it.

use std::fmt;
use std::str::FromStr;

use bowline_core::hex::hex;
use sha2::{Digest as _, Sha256};

/// The hash of a row and, through it, of every row before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Returns the hash of a row that follows the one of this hash.
    pub(super) fn then(self, body: &[u8]) -> Self {
        let mut sha = Sha256::new_with_prefix(self.0);
        sha.update(body);
        Self(sha.finalize().into())
    }

    /// Returns the hash that these bytes are, where they are one.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for Hash {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = Self::default();
        if pairs.len() != hash.0.len() || !rest.is_empty() {
            return Err(NoHash);
        }
        for (to, pair) in hash.0.iter_mut().zip(pairs) {
            let digit = |byte: u8| {
                (byte as char)
                    .to_digit(16)
                    .and_then(|it| u8::try_from(it).ok())
            };
            let [high, low] = pair.map(digit);
            *to = (high.ok_or(NoHash)? << 4) | low.ok_or(NoHash)?;
        }
        Ok(hash)
    }
}

/// The text is no hash, or no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form SEQ:HASH with 64 hex digits")]
pub struct NoHash;

/// The last row of a trail: noted elsewhere, it proves that nothing up to it was changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its number; 0 before the first row.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
}

impl Head {
    /// Returns the head after a row with this body.
    pub(super) fn then(self, body: &[u8]) -> Self {
        Self {
            seq: self.seq + 1,
            hash: self.hash.then(body),
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for Head {
    type Err = NoHash;

    fn from_str(text: &str) -> Result<Self, NoHash> {
        let (seq, hash) = text.split_once(':').ok_or(NoHash)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| NoHash)?,
            hash: hash.parse()?,
        })
    }
}
