//! Redaction of results without secrets, the common case.

use std::hint::black_box;

use bowline_host::redaction::ResultSecrets;
use bytes::Bytes;

/// Secrets of a gateway with many servers, including the shortest searchable secrets.
const SECRETS: usize = 16;

/// Bytes of a result.
const RESULT_BYTES: usize = 64 * 1024;

/// Redacts results and returns the number of KiB.
pub(crate) fn redact_results(kib: u32) -> u32 {
    let secrets = ResultSecrets::default();
    let all: Vec<_> = (0..SECRETS)
        .map(|nth| format!("hunter{nth:02}{}", "x7Qp".repeat(nth)))
        .collect();
    secrets.replace_configured(all.iter().map(|secret| ("KEY", secret.as_str())));
    let text = result_text();
    let kib_each = u32::try_from(RESULT_BYTES / 1024).unwrap_or(u32::MAX);
    let rounds = kib / kib_each;
    for _ in 0..rounds {
        let cleaned = secrets.redact(black_box(text.clone()));
        assert_eq!(cleaned.as_ptr(), text.as_ptr(), "nothing is to be found");
    }
    rounds * kib_each
}

/// Returns a typical result: words, numbers, identifiers and escapes.
fn result_text() -> Bytes {
    let mut text = String::with_capacity(RESULT_BYTES);
    text.push_str(r#"{"content":[{"type":"text","text":""#);
    let mut nth = 0_u64;
    while text.len() < RESULT_BYTES - 128 {
        let id = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        text.push_str(&format!(
            "line {nth} of hunt/{id:x}.rs: \\\"value\\\" = {id}\\n"
        ));
        nth += 1;
    }
    text.push_str(r#""}],"isError":false}"#);
    text.into()
}
