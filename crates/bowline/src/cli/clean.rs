//! Escapes server text for a terminal: moving, hiding and reordering characters become visible.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes text of several lines: line ends and tabs stay.
pub(crate) fn escape_text(text: &str) -> Cow<'_, str> {
    escape_chars(text, |character| {
        character != '\n' && character != '\t' && is_hidden_char(character)
    })
}

/// Escapes text for a line or cell: line ends and tabs become spaces.
pub(crate) fn escape_line(text: &str) -> Cow<'_, str> {
    let is_break = |character| matches!(character, '\n' | '\r' | '\t');
    if text.contains(is_break) {
        let flat: Vec<&str> = text
            .split(is_break)
            .filter(|part| !part.is_empty())
            .collect();
        return Cow::Owned(escape_chars(&flat.join(" "), is_hidden_char).into_owned());
    }
    escape_chars(text, is_hidden_char)
}

fn escape_chars(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if !hidden(character) {
            out.push(character);
        } else if character == '\r' {
            out.push_str("\\r");
        } else if u32::from(character) < 0x100 {
            let _written = write!(out, "\\x{:02x}", u32::from(character));
        } else {
            let _written = write!(out, "\\u{{{:x}}}", u32::from(character));
        }
    }
    Cow::Owned(out)
}

fn is_hidden_char(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'                    // soft hyphen
            | '\u{61c}'                 // bidi mark
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'   // zero width, bidi marks
            | '\u{2028}'..='\u{202e}'   // line separators, bidi embedding
            | '\u{2060}'..='\u{206f}'   // zero width, bidi isolates
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}' // tags: invisible text that models read
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_become_visible() {
        assert_eq!(escape_text("a\u{1b}[2Jb"), "a\\x1b[2Jb");
        assert_eq!(escape_text("ok\rno"), "ok\\rno");
        assert_eq!(
            escape_text("x\u{202e}y\u{200b}z\u{e0041}"),
            "x\\u{202e}y\\u{200b}z\\u{e0041}"
        );
        assert_eq!(escape_text("\u{9b}31m\u{7}"), "\\x9b31m\\x07");
    }

    #[test]
    fn plain_text_is_not_copied() {
        assert!(matches!(escape_text("ünï\n\tçödé 🙂"), Cow::Borrowed(_)));
        assert!(matches!(escape_line("one line"), Cow::Borrowed(_)));
    }

    #[test]
    fn escaped_line_has_no_breaks() {
        assert_eq!(escape_line("a\nb\r\n\tc\u{1b}"), "a b c\\x1b");
    }
}
