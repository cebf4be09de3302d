//! Results of `tools/call`: text content and the error flag.

use std::borrow::Cow;

use crate::object;
use crate::splice::write_string;

/// Returns the text of all text blocks, joined by line breaks; the raw JSON without text blocks.
#[must_use]
pub fn joined_text(result: &[u8]) -> Cow<'_, str> {
    let mut texts = text_blocks(result);
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

/// Whether the tool ran and reported an error.
#[must_use]
pub fn is_error(result: &[u8]) -> bool {
    object::field(result, "isError").is_some_and(|at| at.slice(result) == b"true")
}

/// Writes a result with one text block; `more` are further members, each after a comma.
#[must_use]
pub fn from_text(text: &str, more: &str) -> Vec<u8> {
    let mut out = Vec::from(&br#"{"content":[{"type":"text","text":"#[..]);
    write_string(&mut out, text);
    out.extend_from_slice(b"}]");
    out.extend_from_slice(more.as_bytes());
    out.push(b'}');
    out
}

/// The additional member of a failed result.
pub const IS_ERROR_MEMBER: &str = ",\"isError\":true";

fn text_blocks(result: &[u8]) -> impl Iterator<Item = Cow<'_, str>> {
    let content = object::field(result, "content").map_or(&[][..], |at| at.slice(result));
    let blocks = object::items(content).map(|at| at.slice(content));
    blocks
        .filter(|block| object::text_field(block, "type").as_deref() == Some("text"))
        .filter_map(|block| object::text_field(block, "text"))
}
