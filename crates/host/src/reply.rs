//! Answers that the host gives itself, in the form of those of servers.

use bowline_core::call::{Body, Origin, Reply};
use bowline_core::era::Era;
use bowline_wire::splice::write_string;
use bytes::Bytes;

/// Writes a result that says the same as text and as structured content.
pub(crate) fn told(said: &str, id: &Bytes, origin: Origin) -> Reply {
    let mut result = text(said);
    result.extend_from_slice(b",\"structuredContent\":");
    result.extend_from_slice(said.as_bytes());
    result.push(b'}');
    whole(&result, id, origin)
}

/// Writes a result that says what is wrong with the arguments.
pub(crate) fn wrong(said: &str, id: &Bytes) -> Reply {
    let mut result = text(said);
    result.extend_from_slice(b",\"isError\":true}");
    whole(&result, id, Origin::Live)
}

/// Writes a whole result as the answer to `id`.
pub(crate) fn whole(result: &[u8], id: &Bytes, origin: Origin) -> Reply {
    let mut answer = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    answer.extend_from_slice(id);
    answer.extend_from_slice(br#","result":"#);
    let start = answer.len();
    answer.extend_from_slice(result);
    let body_at = start..answer.len();
    answer.push(b'}');
    Reply {
        answer: answer.into(),
        body_at,
        body: Body::Result,
        origin,
        era: Era::Legacy,
        server: None,
    }
}

/// Begins a result with one text.
fn text(said: &str) -> Vec<u8> {
    let mut result = b"{\"content\":[{\"type\":\"text\",\"text\":".to_vec();
    write_string(&mut result, said);
    result.extend_from_slice(b"}]");
    result
}
