//! Row checksums, and totals that reveal a missing row.

use sha2::{Digest as _, Sha256};

/// Checksum of a row or of bytes: the first half of a SHA-256.
pub(super) type Checksum = [u8; 16];

/// Hashes the fields of a row, each with its length, so different rows never hash the same bytes.
#[derive(Debug)]
pub(super) struct ChecksumBuilder(Sha256);

impl ChecksumBuilder {
    /// Begins a row of this table.
    pub(super) fn new(table: &str) -> Self {
        Self(Sha256::new()).add_bytes(table.as_bytes())
    }

    pub(super) fn add_bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(super) fn add_int(mut self, number: u64) -> Self {
        self.0.update(number.to_le_bytes());
        self
    }

    /// Adds a field that may be absent.
    pub(super) fn add_optional(self, bytes: Option<&[u8]>) -> Self {
        match bytes {
            Some(bytes) => self.add_int(1).add_bytes(bytes),
            None => self.add_int(0),
        }
    }

    pub(super) fn finish(self) -> Checksum {
        let whole: [u8; 32] = self.0.finalize().into();
        let mut sum = Checksum::default();
        for (to, from) in sum.iter_mut().zip(whole) {
            *to = from;
        }
        sum
    }
}

/// Returns the checksum of a body, result or value.
pub(super) fn checksum_bytes(bytes: &[u8]) -> Checksum {
    ChecksumBuilder::new("bytes").add_bytes(bytes).finish()
}

/// Row count and sum of row checksums, independent of row order; a missing row changes the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChecksumTotal {
    pub(super) count: u64,
    pub(super) total: u128,
}

impl ChecksumTotal {
    pub(super) const fn add(&mut self, sum: Checksum) {
        self.count = self.count.wrapping_add(1);
        self.total = self.total.wrapping_add(u128::from_le_bytes(sum));
    }

    pub(super) const fn subtract(&mut self, sum: Checksum) {
        self.count = self.count.wrapping_sub(1);
        self.total = self.total.wrapping_sub(u128::from_le_bytes(sum));
    }

    pub(super) const fn total_bytes(self) -> Checksum {
        self.total.to_le_bytes()
    }
}
