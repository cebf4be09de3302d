//! Hash chain: each hash covers a row and the hash of the row before.

use std::fmt;
use std::str::FromStr;

use bowline_core::hex::to_hex;
use sha2::{Digest as _, Sha256};

/// Hash of a row and, through the chain, of every earlier row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChainHash(pub [u8; 32]);

impl ChainHash {
    /// Returns the hash of the next row, with `body` as content.
    pub(super) fn extend(self, body: &[u8]) -> Self {
        let mut sha = Sha256::new_with_prefix(self.0);
        sha.update(body);
        Self(sha.finalize().into())
    }

    /// Returns the hash stored in `bytes`, if the length fits.
    #[cfg(feature = "sqlite")]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl FromStr for ChainHash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = Self::default();
        if pairs.len() != hash.0.len() || !rest.is_empty() {
            return Err(ParseHashError);
        }
        for (to, pair) in hash.0.iter_mut().zip(pairs) {
            let digit = |byte: u8| {
                (byte as char)
                    .to_digit(16)
                    .and_then(|it| u8::try_from(it).ok())
            };
            let [high, low] = pair.map(digit);
            *to = (high.ok_or(ParseHashError)? << 4) | low.ok_or(ParseHashError)?;
        }
        Ok(hash)
    }
}

/// Text that does not parse as a hash or a chain head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form SEQ:HASH with 64 hex digits")]
pub struct ParseHashError;

/// Last row of a trail. A recorded head proves that no row up to the head changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// Sequence number; 0 before the first row.
    pub seq: u64,
    /// Chain hash.
    pub hash: ChainHash,
}

impl ChainHead {
    /// Returns the head after appending a row with this body.
    pub(super) fn advance(self, body: &[u8]) -> Self {
        Self {
            seq: self.seq + 1,
            hash: self.hash.extend(body),
        }
    }
}

impl fmt::Display for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for ChainHead {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let (seq, hash) = text.split_once(':').ok_or(ParseHashError)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| ParseHashError)?,
            hash: hash.parse()?,
        })
    }
}
