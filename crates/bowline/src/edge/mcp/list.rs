//! Lists: ready bytes as one page, or pages of ours where one would be too large.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bowline_host::catalog::{ListKind, Listing};
use bowline_wire::mcp::code;
use bowline_wire::splice::write_string;
use bowline_wire::{Message, object};
use bytes::Bytes;

use super::{Caller, error, result};
use crate::edge::session::Session;

/// Bytes of a list that is told as one page, and of each page of a larger one.
const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of the fingerprint in a cursor: it goes on in the list it comes from, or not at all.
const MARK_BYTES: usize = 16;

/// What is said of a cursor that does not fit.
pub(in crate::edge) const STRANGE_CURSOR: &str =
    "this cursor was not given out for the list as it is now; begin without one";

/// Answers a request for a list.
pub(super) async fn answer(
    caller: Caller<'_>,
    session: &Arc<Session>,
    kind: ListKind,
    message: &Message,
) -> Bytes {
    let id = message.id().unwrap_or(b"null");
    let params = message.params().unwrap_or_default();
    let cursor = object::field(params, "cursor").map(|at| at.of(params));
    caller.edge.host.settled().await;
    let host = &caller.edge.host;
    host.shown_to(caller.principal, caller.scope).await;
    let list = caller.edge.host.view(caller.principal, caller.scope, kind);
    let list = list.for_legacy();
    session.knows(kind, list.fingerprint);
    match page_of(&list, kind, cursor) {
        Some(page) => result(id, &page),
        None => error(Some(id), code::INVALID_PARAMS, STRANGE_CURSOR),
    }
}

/// Returns the page of a list that a cursor asks for, the first where there is none; `None` for a
/// cursor that was not given out for this list.
pub(in crate::edge) fn page_of(
    list: &Listing,
    kind: ListKind,
    cursor: Option<&[u8]>,
) -> Option<Bytes> {
    let from = match cursor {
        None if list.result.len() <= PAGE_BYTES_MAX => return Some(list.result.clone()),
        None => 0,
        Some(cursor) => read_cursor(cursor, list)?,
    };
    page(list, kind.member(), from, PAGE_BYTES_MAX).map(Bytes::from)
}

/// Writes the page that begins with the item number `from`; `None` when there is none.
fn page(list: &Listing, key: &str, from: usize, page_bytes_max: usize) -> Option<Vec<u8>> {
    let items_at = object::field(&list.result, key)?;
    let text = items_at.of(&list.result);
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
        out.extend_from_slice(item.of(text));
        next += 1;
    }
    out.push(b']');
    if items.peek().is_some() {
        out.extend_from_slice(b",\"nextCursor\":");
        write_string(&mut out, &cursor(list, next));
    }
    out.push(b'}');
    Some(out)
}

/// Writes a cursor: which list, and which item comes next.
fn cursor(list: &Listing, next: usize) -> String {
    let mut bytes = Vec::from(mark(list));
    bytes.extend_from_slice(&(next as u64).to_be_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads a cursor that was given out for this list.
fn read_cursor(cursor: &[u8], list: &Listing) -> Option<usize> {
    let bytes = URL_SAFE_NO_PAD
        .decode(object::string(cursor)?.as_ref())
        .ok()?;
    let next = bytes.strip_prefix(mark(list))?;
    let next = usize::try_from(u64::from_be_bytes(next.try_into().ok()?)).ok()?;
    // The first page has no cursor.
    (next > 0).then_some(next)
}

fn mark(list: &Listing) -> &[u8] {
    list.fingerprint.get(..MARK_BYTES).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Listing {
        Listing {
            result: Bytes::from_static(
                br#"{"tools":[{"n":1},{"n":2} , {"n":3},{"n":"a long one"}]}"#,
            ),
            fingerprint: [7; 32],
            hint: None,
            legacy: None,
        }
    }

    #[test]
    fn pages_hold_every_item_once_and_in_order() {
        let list = list();
        let mut from = 0;
        let mut pages = Vec::new();
        loop {
            let page = page(&list, "tools", from, 26).unwrap();
            let page: serde_json::Value = serde_json::from_slice(&page).unwrap();
            pages.push(page["tools"].to_string());
            let Some(cursor) = page.get("nextCursor") else {
                break;
            };
            from = read_cursor(cursor.to_string().as_bytes(), &list).unwrap();
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
    fn a_cursor_of_another_list_or_of_nobody_is_not_taken() {
        let list = list();
        let other = Listing {
            fingerprint: [8; 32],
            ..list.clone()
        };
        let given = |next| format!("\"{}\"", cursor(&list, next));
        assert_eq!(read_cursor(given(2).as_bytes(), &list), Some(2));
        assert_eq!(read_cursor(given(2).as_bytes(), &other), None);
        for wrong in ["\"\"", "1", "null", "\"%\"", "\"BwcHBwcHBwc\""] {
            assert_eq!(read_cursor(wrong.as_bytes(), &list), None, "{wrong}");
        }
        assert_eq!(read_cursor(given(0).as_bytes(), &list), None);
        assert_eq!(page(&list, "tools", 4, 26), None, "beyond the end");
    }
}
