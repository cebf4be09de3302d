//! List pages: prerendered bytes as a single page, or several pages for large lists.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline_host::catalog::{ListKind, RenderedList};
use bowline_wire::mcp::code;
use bowline_wire::splice::write_string;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;

use super::{McpCaller, error_response, result_response};
use crate::client_session::ClientSession;

/// Maximum size of a page; smaller lists are returned as a single page.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Fingerprint bytes in a cursor; binds the cursor to an exact list version.
const FINGERPRINT_BYTES: usize = 16;

/// Error text for a cursor of a different list.
pub(crate) const INVALID_CURSOR: &str =
    "this cursor was not given out for the list as it is now; begin without one";

/// Handles a list request.
pub(super) async fn handle_list(
    caller: McpCaller<'_>,
    session: &Arc<ClientSession>,
    kind: ListKind,
    message: &RpcMessage,
) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let cursor = object::field(params, "cursor").map(|at| at.slice(params));
    caller.edge.host.wait_settled().await;
    let host = &caller.edge.host;
    host.start_unlisted_for(caller.principal, caller.scope)
        .await;
    let list = caller
        .edge
        .host
        .list_for(caller.principal, caller.scope, kind);
    let list = list.for_legacy();
    session.note_list(kind, list.fingerprint);
    match page_at_cursor(&list, kind, cursor) {
        Some(page) => result_response(id, &page),
        None => error_response(Some(id), code::INVALID_PARAMS, INVALID_CURSOR),
    }
}

/// Returns the page for a cursor, or the first page without a cursor; `None` for a cursor of a
/// different list.
pub(crate) fn page_at_cursor(
    list: &RenderedList,
    kind: ListKind,
    cursor: Option<&[u8]>,
) -> Option<Bytes> {
    let from = match cursor {
        None if list.result.len() <= PAGE_BYTES_MAX => return Some(list.result.clone()),
        None => 0,
        Some(cursor) => decode_cursor(cursor, list)?,
    };
    write_page(list, kind.member(), from, PAGE_BYTES_MAX).map(Bytes::from)
}

/// Writes the page starting with item `from`; `None` past the end.
fn write_page(
    list: &RenderedList,
    key: &str,
    from: usize,
    page_bytes_max: usize,
) -> Option<Vec<u8>> {
    let items_at = object::field(&list.result, key)?;
    let text = items_at.slice(&list.result);
    let mut items = object::items(text).skip(from).peekable();
    items.peek()?;
    let mut out = Vec::from(&b"{"[..]);
    write_string(&mut out, key);
    out.extend_from_slice(b":[");
    let mut next = from;
    let start = out.len();
    while let Some(item) = items
        .next_if(|item| out.len() == start || out.len() + (item.end - item.start) <= page_bytes_max)
    {
        if next > from {
            out.push(b',');
        }
        out.extend_from_slice(item.slice(text));
        next += 1;
    }
    out.push(b']');
    if items.peek().is_some() {
        out.extend_from_slice(b",\"nextCursor\":");
        write_string(&mut out, &encode_cursor(list, next));
    }
    out.push(b'}');
    Some(out)
}

/// Encodes a cursor: list fingerprint and next item.
fn encode_cursor(list: &RenderedList, next: usize) -> String {
    let mut bytes = Vec::from(cursor_prefix(list));
    bytes.extend_from_slice(&(next as u64).to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes a cursor issued for this list.
fn decode_cursor(cursor: &[u8], list: &RenderedList) -> Option<usize> {
    let bytes = URL_SAFE_NO_PAD
        .decode(object::parse_string(cursor)?.as_ref())
        .ok()?;
    let next = bytes.strip_prefix(cursor_prefix(list))?;
    let next = usize::try_from(u64::from_be_bytes(next.try_into().ok()?)).ok()?;
    // The first page has no cursor.
    (next > 0).then_some(next)
}

fn cursor_prefix(list: &RenderedList) -> &[u8] {
    list.fingerprint
        .get(..FINGERPRINT_BYTES)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_list() -> RenderedList {
        RenderedList {
            result: Bytes::from_static(
                br#"{"tools":[{"n":1},{"n":2} , {"n":3},{"n":"a long one"}]}"#,
            ),
            fingerprint: [7; 32],
            hint: None,
            legacy: None,
        }
    }

    #[test]
    fn pages_hold_each_item_once() {
        let list = test_list();
        let mut from = 0;
        let mut pages = Vec::new();
        loop {
            let page = write_page(&list, "tools", from, 26).unwrap();
            let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
            pages.push(page["tools"].to_string());
            let Some(cursor) = page.get("nextCursor") else {
                break;
            };
            from = decode_cursor(cursor.to_string().as_bytes(), &list).unwrap();
        }
        assert_eq!(
            pages,
            [
                r#"[{"n":1},{"n":2}]"#,
                r#"[{"n":3}]"#,
                r#"[{"n":"a long one"}]"#
            ]
        );
    }

    #[test]
    fn foreign_cursor_is_rejected() {
        let list = test_list();
        let other = RenderedList {
            fingerprint: [8; 32],
            ..list.clone()
        };
        let given = |next| format!("\"{}\"", encode_cursor(&list, next));
        assert_eq!(decode_cursor(given(2).as_bytes(), &list), Some(2));
        assert_eq!(decode_cursor(given(2).as_bytes(), &other), None);
        for wrong in ["\"\"", "1", "null", "\"%\"", "\"BwcHBwcHBwc\""] {
            assert_eq!(decode_cursor(wrong.as_bytes(), &list), None, "{wrong}");
        }
        assert_eq!(decode_cursor(given(0).as_bytes(), &list), None);
        assert_eq!(write_page(&list, "tools", 4, 26), None, "beyond the end");
    }
}
