//! Adds the server name to a server request, so the user can tell the sender.

use std::ops::Range;

use bowline_wire::splice::to_literal;
use bowline_wire::{ByteSpan, ObjectEditor, RpcMessage};
use bytes::Bytes;

/// Member of `_meta` with the server name.
pub(crate) const SERVER_META_KEY: &str = "dev.bowline/server";

/// Returns the request with the server name in `params._meta`, overwriting the server's own value,
/// and the byte range of its id.
pub(crate) fn with_server_name(message: &RpcMessage, server: &str) -> (Bytes, Range<usize>) {
    let mut editor = ObjectEditor::new(message.bytes());
    let whole = editor.whole();
    add_server_name(&mut editor, whole, message.params_span(), server);
    let id_at = message.id_span().map_or(0..0, ByteSpan::to_range);
    let id_at = editor.moved_range(&id_at);
    (editor.finish().into(), id_at)
}

/// Adds the server name to the request at `request_at`, whose parameters are at `params_at`.
/// Parameters that are no object stay unchanged.
pub(super) fn add_server_name(
    editor: &mut ObjectEditor<'_>,
    request_at: ByteSpan,
    params_at: Option<ByteSpan>,
    server: &str,
) {
    let name = to_literal(server);
    match params_at {
        Some(at) => editor.set_first(at, &["_meta", SERVER_META_KEY], name),
        None => editor.set_first(request_at, &["params", "_meta", SERVER_META_KEY], name),
    };
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
