//! What every number stands for: lane, id, body and result follow from it, so that whoever reads
//! a row knows what it must say.

use std::sync::Arc;

use anyhow::Result;
use bowline_journal::Lane;
use bytes::Bytes;

/// All lanes and keys of the ordeal begin so.
pub(crate) const PREFIX: &str = "ordeal/";

/// Bytes of a body.
pub(crate) const BODY_BYTES: usize = 512;

/// Bytes of a result.
const RESULT_BYTES: usize = 48;

/// Every so many-th message goes to the lane that all producers share.
const SHARED_EVERY: u64 = 4;

/// A producer's numbers within one run stay below this.
const RUN_BITS: u32 = 24;
const PRODUCER_BITS: u32 = 12;

/// The number of a producer's n-th message in a run of the writer.
pub(crate) const fn number(run: u64, producer: u64, nth: u64) -> u64 {
    (run << (RUN_BITS + PRODUCER_BITS)) | (producer << RUN_BITS) | nth
}

/// Who made a number.
pub(crate) const fn producer(number: u64) -> u64 {
    (number >> RUN_BITS) & ((1 << PRODUCER_BITS) - 1)
}

/// The lane of a number.
pub(crate) fn lane(number: u64) -> Result<Lane> {
    let name = match number % SHARED_EVERY {
        0 => format!("{PREFIX}shared"),
        _ => format!("{PREFIX}{}", producer(number)),
    };
    Ok(Lane::new(&name)?)
}

/// The dedupe id of a number.
pub(crate) fn dedupe(number: u64) -> Arc<str> {
    format!("n{number}").into()
}

/// The number of a dedupe id.
pub(crate) fn number_of(dedupe: &str) -> Option<u64> {
    dedupe.strip_prefix('n')?.parse().ok()
}

/// The digest of a number.
pub(crate) fn digest(number: u64) -> [u8; 32] {
    let mut digest = [0; 32];
    fill(number ^ 0x5eed, &mut digest);
    digest
}

/// The body of a number.
pub(crate) fn body(number: u64) -> Bytes {
    let mut body = vec![0; BODY_BYTES];
    fill(number, &mut body);
    body.into()
}

/// What comes of a number.
pub(crate) fn result(number: u64) -> Bytes {
    let mut result = vec![0; RESULT_BYTES];
    fill(!number, &mut result);
    result.into()
}

/// Why a number is a dead letter.
pub(crate) fn reason(number: u64) -> Arc<str> {
    format!("reason of {number}").into()
}

/// The key of a producer's value.
pub(crate) fn key(producer: u64) -> String {
    format!("{PREFIX}value/{producer}")
}

/// A producer's n-th value.
pub(crate) fn value(producer: u64, nth: u64) -> Bytes {
    let mut value = nth.to_le_bytes().to_vec();
    value.extend_from_slice(&result(producer ^ (nth << 16)));
    value.into()
}

/// Bytes that follow from a number and look like none.
fn fill(number: u64, bytes: &mut [u8]) {
    let mut random = fastrand::Rng::with_seed(number);
    random.fill(bytes);
}
