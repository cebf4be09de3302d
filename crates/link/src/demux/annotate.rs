//! Adds the server name to a server request, so the user can tell the sender.

use std::ops::Range;

use bowline_wire::splice::{replace_span, write_string};
use bowline_wire::{ByteSpan, RpcMessage, object};
use bytes::Bytes;

/// Member of `_meta` with the server name.
pub(crate) const SERVER_META_KEY: &str = "dev.bowline/server";

/// Returns the request with the server name in `params._meta`, overwriting the server's own value,
/// and the byte range of its id.
pub(crate) fn with_server_name(message: &RpcMessage, server: &str) -> (Bytes, Range<usize>) {
    let whole = ByteSpan {
        start: 0,
        end: message.bytes().len(),
    };
    let bytes = insert_server_name(message.bytes(), whole, message.params_span(), server);
    let id_at = object::field(&bytes, "id").unwrap_or(ByteSpan { start: 0, end: 0 });
    (bytes, id_at.start..id_at.end)
}

/// Inserts the server name into the request at `whole`, whose parameters are at `params_at`.
pub(super) fn insert_server_name(
    bytes: &[u8],
    whole: ByteSpan,
    params_at: Option<ByteSpan>,
    server: &str,
) -> Bytes {
    let mut name = Vec::new();
    write_string(&mut name, server);
    let entry = [b"\"", SERVER_META_KEY.as_bytes(), b"\":", &*name].concat();
    let Some(params_at) = params_at else {
        let meta = [b"\"params\":{\"_meta\":{", &entry[..], b"}}"].concat();
        return insert_member(bytes, whole, &meta);
    };
    let params = params_at.slice(bytes);
    let Some(meta) = object::field(params, "_meta") else {
        let meta = [b"\"_meta\":{", &entry[..], b"}"].concat();
        return insert_member(bytes, params_at, &meta);
    };
    let meta_at = meta.shift(params_at.start);
    let meta = meta_at.slice(bytes);
    if !meta.starts_with(b"{") {
        let meta = [b"{", &entry[..], b"}"].concat();
        return replace_span(bytes, meta_at, &meta).into();
    }
    match object::field(meta, SERVER_META_KEY) {
        Some(existing) => replace_span(bytes, existing.shift(meta_at.start), &name).into(),
        None => insert_member(bytes, meta_at, &entry),
    }
}

/// Inserts a member at the start of the object at `at`; a non-object stays unchanged.
fn insert_member(bytes: &[u8], at: ByteSpan, member: &[u8]) -> Bytes {
    let object = at.slice(bytes);
    let Some(open) = object.iter().position(|byte| *byte == b'{') else {
        return Bytes::copy_from_slice(bytes);
    };
    if open > 0 && !object.iter().take(open).all(u8::is_ascii_whitespace) {
        return Bytes::copy_from_slice(bytes);
    }
    let start = at.start + open + 1;
    let insert_at = ByteSpan { start, end: start };
    let gap: &[u8] = match object::fields(object).next() {
        Some(_) => b",",
        None => b"",
    };
    replace_span(bytes, insert_at, &[member, gap].concat()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_is_the_only_request_change() {
        for (question, want) in [
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#,
                r#"{"params":{"_meta":{"dev.bowline/server":"s"}},"jsonrpc":"2.0","id":7,"method":"roots/list"}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{}}"#,
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"dev.bowline/server":"s"}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","method":"m","params":{ "x":1e400},"id":7}"#,
                r#"{"jsonrpc":"2.0","method":"m","params":{"_meta":{"dev.bowline/server":"s"}, "x":1e400},"id":7}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"a":1}}}"#,
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"dev.bowline/server":"s","a":1}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"a":1,"dev.bowline/server":"bank"}}}"#,
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"a":1,"dev.bowline/server":"s"}}}"#,
            ),
            (
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":null}}"#,
                r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"_meta":{"dev.bowline/server":"s"}}}"#,
            ),
        ] {
            let message =
                RpcMessage::parse_from_client(Bytes::from_static(question.as_bytes())).unwrap();
            let (bytes, id_at) = with_server_name(&message, "s");
            assert_eq!(bytes, want);
            assert_eq!(bytes.get(id_at), Some(&b"7"[..]));
        }
    }
}
