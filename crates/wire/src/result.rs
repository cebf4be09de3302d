//! The result of `tools/call`: what it says as text, and whether it says that the tool failed.

use std::borrow::Cow;

use crate::object;
use crate::splice::write_string;

/// Returns the text of all text blocks, one below the other; the whole result as JSON where there
/// is none.
#[must_use]
pub fn text(result: &[u8]) -> Cow<'_, str> {
    let mut texts = blocks(result);
    match (texts.next(), texts.next()) {
        (None, _) => String::from_utf8_lossy(result),
        (Some(only), None) => only,
        (Some(first), Some(second)) => {
            let mut all = first.into_owned();
            for text in std::iter::once(second).chain(texts) {
                all.push('\n');
                all.push_str(&text);
            }
            Cow::Owned(all)
        }
    }
}

/// Whether the tool ran and says that it failed.
#[must_use]
pub fn is_error(result: &[u8]) -> bool {
    object::field(result, "isError").is_some_and(|at| at.of(result) == b"true")
}

/// Writes a result of one text block; `more` are further members, each after a comma.
#[must_use]
pub fn of_text(text: &str, more: &str) -> Vec<u8> {
    let mut out = Vec::from(&br#"{"content":[{"type":"text","text":"#[..]);
    write_string(&mut out, text);
    out.extend_from_slice(b"}]");
    out.extend_from_slice(more.as_bytes());
    out.push(b'}');
    out
}

/// The further member of the result of a tool that ran and failed.
pub const FAILED: &str = ",\"isError\":true";

fn blocks(result: &[u8]) -> impl Iterator<Item = Cow<'_, str>> {
    let content = object::field(result, "content").map_or(&[][..], |at| at.of(result));
    let blocks = object::items(content).map(|at| at.of(content));
    blocks
        .filter(|block| object::text(block, "type").as_deref() == Some("text"))
        .filter_map(|block| object::text(block, "text"))
}
