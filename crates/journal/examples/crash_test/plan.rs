//! Deterministic messages: lane, id, body and result follow from a number, so every row can be
//! checked.

use std::sync::Arc;

use anyhow::Result;
use bowline_journal::LaneName;
use bytes::Bytes;

/// Prefix of all lanes and keys.
pub(crate) const PREFIX: &str = "crash_test/";

/// Bytes of a body.
pub(crate) const BODY_BYTES: usize = 512;

/// Bytes of a result.
const RESULT_BYTES: usize = 48;

/// Interval of messages in the shared lane.
const SHARED_EVERY: u64 = 4;

/// Bits of a producer's numbers within a run, and of the producer.
const RUN_BITS: u32 = 24;
const PRODUCER_BITS: u32 = 12;

/// Returns the number of a producer's n-th message in a run of the writer.
pub(crate) const fn message_number(run: u64, producer: u64, nth: u64) -> u64 {
    (run << (RUN_BITS + PRODUCER_BITS)) | (producer << RUN_BITS) | nth
}

/// Returns the producer of a number.
pub(crate) const fn number_producer(number: u64) -> u64 {
    (number >> RUN_BITS) & ((1 << PRODUCER_BITS) - 1)
}

/// Returns the lane of a number.
pub(crate) fn number_lane(number: u64) -> Result<LaneName> {
    let name = match number % SHARED_EVERY {
        0 => format!("{PREFIX}shared"),
        _ => format!("{PREFIX}{}", number_producer(number)),
    };
    Ok(LaneName::new(&name)?)
}

/// Returns the dedupe id of a number.
pub(crate) fn number_dedupe_id(number: u64) -> Arc<str> {
    format!("n{number}").into()
}

/// Returns the number of a dedupe id.
pub(crate) fn parse_dedupe_id(dedupe: &str) -> Option<u64> {
    dedupe.strip_prefix('n')?.parse().ok()
}

/// Returns the digest of a number.
pub(crate) fn number_digest(number: u64) -> [u8; 32] {
    let mut digest = [0; 32];
    fill_bytes(number ^ 0x5eed, &mut digest);
    digest
}

/// Returns the body of a number.
pub(crate) fn number_body(number: u64) -> Bytes {
    let mut body = vec![0; BODY_BYTES];
    fill_bytes(number, &mut body);
    body.into()
}

/// Returns the result of a number.
pub(crate) fn number_result(number: u64) -> Bytes {
    let mut result = vec![0; RESULT_BYTES];
    fill_bytes(!number, &mut result);
    result.into()
}

/// Returns the dead-letter reason of a number.
pub(crate) fn number_reason(number: u64) -> Arc<str> {
    format!("reason of {number}").into()
}

/// Returns the key of a producer's value.
pub(crate) fn value_key(producer: u64) -> String {
    format!("{PREFIX}value/{producer}")
}

/// Returns a producer's n-th value.
pub(crate) fn value_bytes(producer: u64, nth: u64) -> Bytes {
    let mut value = nth.to_le_bytes().to_vec();
    value.extend_from_slice(&number_result(producer ^ (nth << 16)));
    value.into()
}

/// Fills bytes pseudo-randomly from a number.
fn fill_bytes(number: u64, bytes: &mut [u8]) {
    let mut random = fastrand::Rng::with_seed(number);
    random.fill(bytes);
}
