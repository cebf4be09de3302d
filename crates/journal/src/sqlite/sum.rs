//! Checksums of rows, and totals of them from which a row that is gone shows.

use sha2::{Digest as _, Sha256};

/// The checksum of a row or of bytes: the first half of a SHA-256.
pub(super) type Sum = [u8; 16];

/// Takes up the fields of a row, each with its length, so that no two rows are the same text.
#[derive(Debug)]
pub(super) struct Summer(Sha256);

impl Summer {
    /// Begins a row of this table.
    pub(super) fn new(table: &str) -> Self {
        Self(Sha256::new()).bytes(table.as_bytes())
    }

    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(super) fn int(mut self, number: u64) -> Self {
        self.0.update(number.to_le_bytes());
        self
    }

    /// Takes up a field that may be absent.
    pub(super) fn maybe(self, bytes: Option<&[u8]>) -> Self {
        match bytes {
            Some(bytes) => self.int(1).bytes(bytes),
            None => self.int(0),
        }
    }

    pub(super) fn finish(self) -> Sum {
        let whole: [u8; 32] = self.0.finalize().into();
        let mut sum = Sum::default();
        for (to, from) in sum.iter_mut().zip(whole) {
            *to = from;
        }
        sum
    }
}

/// The checksum of a body, result or value.
pub(super) fn of_bytes(bytes: &[u8]) -> Sum {
    Summer::new("bytes").bytes(bytes).finish()
}

/// How many rows there are and the sum of their checksums: rows may come and go in any order,
/// and one that went by itself shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) total: u128,
}

impl Tally {
    pub(super) const fn add(&mut self, sum: Sum) {
        self.count = self.count.wrapping_add(1);
        self.total = self.total.wrapping_add(u128::from_le_bytes(sum));
    }

    pub(super) const fn take(&mut self, sum: Sum) {
        self.count = self.count.wrapping_sub(1);
        self.total = self.total.wrapping_sub(u128::from_le_bytes(sum));
    }

    pub(super) const fn total_bytes(self) -> Sum {
        self.total.to_le_bytes()
    }
}
