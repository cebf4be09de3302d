//! Block of rows: consecutive rows as one value in a file, each with its length and chain hash.
//!
//! One insertion stores many rows. Callers append rows to a buffer in this form and leave room for
//! the hash; the writer fills in sequence numbers and hashes in place, and stores parts of the
//! buffer as they are.

use std::ops::Range;

use bytes::Bytes;

use super::audit_row::{AuditRow, BodyDigest, ChainHash, ChainHead};
use super::row_encoding::{self, DigestPositions};
use super::{LongBodies, ROW_BYTES_MAX};

/// Bytes of the length in front of a row.
const LENGTH_BYTES: usize = 4;

/// Bytes of the chain hash behind a row.
const HASH_BYTES: usize = 32;

/// A block ends with the row that reaches this size, so that reading one row reads little.
const BLOCK_BYTES: usize = 32 * 1024;

/// Longest block: the last row may have any length of a row.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + ROW_BYTES_MAX + LENGTH_BYTES + HASH_BYTES;

/// Rows without sequence numbers and hashes, in the form of blocks.
#[derive(Debug, Default)]
pub(super) struct RowBuffer {
    bytes: Vec<u8>,
    rows: usize,
    /// Bodies to hash, and the positions of their digests.
    pending: Vec<(usize, Bytes)>,
    pending_bytes: usize,
}

/// Rows of a buffer that form one block.
#[derive(Debug)]
pub(super) struct RowBlock<'a> {
    pub(super) first_seq: u64,
    pub(super) bytes: &'a [u8],
}

impl RowBuffer {
    /// Appends a row; the writer hashes `bodies`.
    pub(super) fn push_row(&mut self, row: &AuditRow<'_>, bodies: LongBodies) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        let DigestPositions { arguments, result } = row_encoding::encode_row(row, &mut self.bytes);
        let row_bytes = self.bytes.len() - start - LENGTH_BYTES;
        if let Some(length) = self.bytes.get_mut(start..start + LENGTH_BYTES) {
            length.copy_from_slice(&u32::try_from(row_bytes).unwrap_or(u32::MAX).to_le_bytes());
        }
        self.bytes.extend_from_slice(&[0; HASH_BYTES]);
        self.rows += 1;
        let pending = [(arguments, bodies.arguments), (result, bodies.result)];
        for (at, body) in pending {
            if let (Some(at), Some(body)) = (at, body) {
                self.pending_bytes += body.len();
                self.pending.push((at, body));
            }
        }
    }

    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes held: rows, and bodies that are not hashed yet.
    pub(super) const fn held_bytes(&self) -> usize {
        self.bytes.len() + self.pending_bytes
    }

    /// Removes all rows and keeps at most `bytes_max` bytes of memory.
    pub(super) fn clear(&mut self, bytes_max: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(bytes_max);
        self.pending = Vec::new();
        (self.rows, self.pending_bytes) = (0, 0);
    }

    /// Hashes the pending bodies.
    pub(super) fn hash_bodies(&mut self) {
        for (at, body) in std::mem::take(&mut self.pending) {
            let digest = BodyDigest::from_body(&body);
            if let Some(room) = self.bytes.get_mut(at..at + digest.0.len()) {
                room.copy_from_slice(&digest.0);
            }
        }
        self.pending_bytes = 0;
    }

    /// Numbers and hashes all rows after `head` and passes them to `store`, block by block.
    pub(super) fn chain_rows<E>(
        &mut self,
        head: ChainHead,
        mut store: impl FnMut(&RowBlock<'_>) -> Result<(), E>,
    ) -> Result<ChainHead, E> {
        let (mut head, mut first_seq) = (head, head.seq + 1);
        let (mut block_at, mut at) = (0, 0);
        while let Some(row_at) = find_row(&self.bytes, at) {
            let hash_at = row_at.end..row_at.end + HASH_BYTES;
            at = hash_at.end;
            let row = self.bytes.get_mut(row_at).unwrap_or_default();
            row_encoding::set_seq(row, head.seq + 1);
            head = head.advance(row);
            if let Some(hash) = self.bytes.get_mut(hash_at) {
                hash.copy_from_slice(&head.hash.0);
            }
            if at - block_at >= BLOCK_BYTES || at == self.bytes.len() {
                let bytes = self.bytes.get(block_at..at).unwrap_or_default();
                store(&RowBlock { first_seq, bytes })?;
                (block_at, first_seq) = (at, head.seq + 1);
            }
        }
        Ok(head)
    }
}

/// Returns the position of the row whose length is at `at`, if the whole row and its hash follow.
fn find_row(block: &[u8], at: usize) -> Option<Range<usize>> {
    let start = at.checked_add(LENGTH_BYTES)?;
    let length = u32::from_le_bytes(*block.get(at..start)?.first_chunk()?);
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    (end.checked_add(HASH_BYTES)? <= block.len()).then_some(start..end)
}

/// Row as stored in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredRow {
    /// Number by position in the file.
    pub(super) seq: u64,
    /// Compact form; `None` where the block cannot be read further.
    pub(super) encoded: Option<Vec<u8>>,
    pub(super) hash: Option<ChainHash>,
}

impl StoredRow {
    /// Returns the row, if a trail wrote the bytes.
    pub(super) fn decode(&self) -> Option<AuditRow<'_>> {
        row_encoding::decode_row(self.encoded.as_deref()?)
    }
}

/// Returns the rows of a block. A block that cannot be read to its end has a last row without
/// content, in the place of the first unreadable one.
pub(super) fn read_block(first_seq: u64, block: &[u8]) -> Vec<StoredRow> {
    let mut rows = Vec::new();
    let (mut seq, mut at) = (first_seq, 0);
    while at < block.len() || rows.is_empty() {
        let Some(row_at) = find_row(block, at) else {
            rows.push(StoredRow {
                seq,
                encoded: None,
                hash: None,
            });
            break;
        };
        at = row_at.end + HASH_BYTES;
        rows.push(StoredRow {
            seq,
            hash: block.get(row_at.end..at).and_then(ChainHash::from_bytes),
            encoded: block.get(row_at).map(Vec::from),
        });
        seq = seq.saturating_add(1);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::audit_row::AuditRowKind;
    use super::*;

    fn buffer_of(rows: usize) -> RowBuffer {
        let mut buffer = RowBuffer::default();
        for nth in 0..rows {
            let mut row = AuditRow::new(AuditRowKind::Call, nth as u64);
            row.result = Some(BodyDigest::PENDING);
            let result = Some(Bytes::from(vec![b'x'; nth]));
            buffer.push_row(
                &row,
                LongBodies {
                    result,
                    ..LongBodies::default()
                },
            );
        }
        buffer
    }

    #[test]
    fn blocks_hold_numbered_chained_rows() {
        let mut buffer = buffer_of(1_000);
        assert_eq!(buffer.rows(), 1_000);
        buffer.hash_bodies();
        let (mut rows, mut ends) = (Vec::new(), Vec::new());
        let start = ChainHead {
            seq: 41,
            ..ChainHead::default()
        };
        let head = buffer.chain_rows(start, |block| {
            assert!(block.bytes.len() <= BLOCK_BYTES_MAX);
            rows.extend(read_block(block.first_seq, block.bytes));
            let last: &StoredRow = rows.last().unwrap();
            let (seq, hash) = (last.seq, last.hash.unwrap());
            ends.push(ChainHead { seq, hash });
            Ok::<_, ()>(())
        });
        let head = head.unwrap();
        assert!(ends.len() > 1, "several blocks");
        assert_eq!((ends.last(), rows.len()), (Some(&head), 1_000));
        let mut chained = start;
        for (nth, row) in rows.iter().enumerate() {
            chained = chained.advance(row.encoded.as_ref().unwrap());
            assert_eq!((row.seq, row.hash), (chained.seq, Some(chained.hash)));
            let decoded = row.decode().unwrap();
            assert_eq!((decoded.seq, decoded.at_ms), (row.seq, nth as u64));
            let digest = BodyDigest::from_body(&vec![b'x'; nth]);
            assert_eq!(decoded.result, Some(digest));
        }
        assert_eq!(chained, head);
    }

    #[test]
    fn cut_block_ends_with_unreadable_row() {
        let mut buffer = buffer_of(3);
        let mut block = Vec::new();
        let chained = buffer.chain_rows(ChainHead::default(), |stored| {
            block = stored.bytes.to_vec();
            Ok::<_, ()>(())
        });
        chained.unwrap();
        let whole = read_block(1, &block);
        for cut in 0..block.len() {
            let rows = read_block(1, &block[..cut]);
            let (last, before) = rows.split_last().unwrap();
            assert_eq!(before, &whole[..before.len()]);
            assert!(
                last.encoded.is_none() || rows == whole[..rows.len()],
                "{cut}"
            );
        }
    }
}
