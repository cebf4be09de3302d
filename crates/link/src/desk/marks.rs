//! Says in a question which server asks it, so that the person who is asked can tell.

use std::ops::Range;

use bowline_wire::splice::{replace, write_string};
use bowline_wire::{Message, Span, object};
use bytes::Bytes;

/// The member of `_meta` that names the server.
pub(crate) const SERVER_MARK: &str = "dev.bowline/server";

/// Returns the question with the name of its server in `params._meta`, whatever the server itself
/// wrote there, and where its id stands.
pub(crate) fn marked(message: &Message, server: &str) -> (Bytes, Range<usize>) {
    let whole = Span {
        start: 0,
        end: message.bytes().len(),
    };
    let bytes = named(message.bytes(), whole, message.params_span(), server);
    let id_at = object::field(&bytes, "id").unwrap_or(Span { start: 0, end: 0 });
    (bytes, id_at.start..id_at.end)
}

/// Returns a text in which the question at `whole`, with these parameters, names its server.
pub(super) fn named(bytes: &[u8], whole: Span, params_at: Option<Span>, server: &str) -> Bytes {
    let mut name = Vec::new();
    write_string(&mut name, server);
    let entry = [b"\"", SERVER_MARK.as_bytes(), b"\":", &*name].concat();
    let Some(params_at) = params_at else {
        let meta = [b"\"params\":{\"_meta\":{", &entry[..], b"}}"].concat();
        return entered(bytes, whole, &meta);
    };
    let params = params_at.of(bytes);
    let Some(meta) = object::field(params, "_meta") else {
        let meta = [b"\"_meta\":{", &entry[..], b"}"].concat();
        return entered(bytes, params_at, &meta);
    };
    let meta_at = meta.shift(params_at.start);
    let meta = meta_at.of(bytes);
    if !meta.starts_with(b"{") {
        let meta = [b"{", &entry[..], b"}"].concat();
        return replace(bytes, meta_at, &meta).into();
    }
    match object::field(meta, SERVER_MARK) {
        Some(said) => replace(bytes, said.shift(meta_at.start), &name).into(),
        None => entered(bytes, meta_at, &entry),
    }
}

/// Writes a member at the beginning of the object at `at`; what is no object stays as it is.
fn entered(bytes: &[u8], at: Span, member: &[u8]) -> Bytes {
    let object = at.of(bytes);
    let Some(open) = object.iter().position(|byte| *byte == b'{') else {
        return Bytes::copy_from_slice(bytes);
    };
    if open > 0 && !object.iter().take(open).all(u8::is_ascii_whitespace) {
        return Bytes::copy_from_slice(bytes);
    }
    let start = at.start + open + 1;
    let here = Span { start, end: start };
    let gap: &[u8] = match object::fields(object).next() {
        Some(_) => b",",
        None => b"",
    };
    replace(bytes, here, &[member, gap].concat()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_names_its_server_and_nothing_else_changes() {
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
            let message = Message::parse(Bytes::from_static(question.as_bytes())).unwrap();
            let (bytes, id_at) = marked(&message, "s");
            assert_eq!(bytes, want);
            assert_eq!(bytes.get(id_at), Some(&b"7"[..]));
        }
    }
}
