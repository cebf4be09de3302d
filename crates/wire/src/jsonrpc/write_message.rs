//! Writes messages as one compact line, without a line end.

use crate::splice::{EditedText, write_string};

/// Appends a request. Line breaks between tokens of the parameters become spaces.
pub fn write_request(out: &mut Vec<u8>, id: u64, method: &str, params: Option<EditedText<'_>>) {
    let start = out.len();
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    out.extend_from_slice(br#","method":"#);
    write_string(out, method);
    if let Some(params) = params {
        out.extend_from_slice(br#","params":"#);
        params.write(out);
    }
    out.push(b'}');
    flatten_lines(out, start);
}

/// Appends a notification. Line breaks between tokens of the parameters become spaces.
pub fn write_notification(out: &mut Vec<u8>, method: &str, params: Option<&[u8]>) {
    let start = out.len();
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"#);
    write_string(out, method);
    if let Some(params) = params {
        out.extend_from_slice(br#","params":"#);
        out.extend_from_slice(params);
    }
    out.push(b'}');
    flatten_lines(out, start);
}

/// Appends a response with a result. Line breaks between tokens become spaces.
pub fn write_result(out: &mut Vec<u8>, id: &[u8], result: &[u8]) {
    let start = out.len();
    out.reserve(id.len() + result.len() + 40);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
    flatten_lines(out, start);
}

/// Appends a response with an error; a missing id is written as null. `data` is JSON.
pub fn write_error(
    out: &mut Vec<u8>,
    id: Option<&[u8]>,
    code: i64,
    message: &str,
    data: Option<&[u8]>,
) {
    let start = out.len();
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.unwrap_or(b"null"));
    out.extend_from_slice(br#","error":{"code":"#);
    out.extend_from_slice(itoa::Buffer::new().format(code).as_bytes());
    out.extend_from_slice(br#","message":"#);
    write_string(out, message);
    if let Some(data) = data {
        out.extend_from_slice(br#","data":"#);
        out.extend_from_slice(data);
    }
    out.extend_from_slice(b"}}");
    flatten_lines(out, start);
}

/// Flattens the text since `start` to one line. JSON allows raw line breaks only between tokens,
/// with the same meaning as a space.
fn flatten_lines(out: &mut [u8], start: usize) {
    let mut rest = out.get_mut(start..).unwrap_or_default();
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (_, tail) = rest.split_at_mut(at);
        let Some((byte, tail)) = tail.split_first_mut() else {
            return;
        };
        *byte = b' ';
        rest = tail;
    }
}
