//! Renders definition values side by side, with invisible and look-alike characters escaped.

use std::fmt::Write as _;

use super::super::clean;
use super::super::pretty::indent_json;

/// Maximum displayed lines of a value.
const VALUE_LINES_MAX: usize = 60;

/// Returns the lines of an old and a new value. On a difference only in look-alike characters, all
/// non-ASCII characters are escaped.
pub(super) fn render_pair(old: Option<&str>, new: Option<&str>) -> (Vec<String>, Vec<String>) {
    let plain = |text: Option<&str>| -> Option<String> {
        let text = text?.chars();
        Some(text.filter(char::is_ascii).collect())
    };
    let is_alike = old.is_some() && plain(old) == plain(new);
    let lines = |text: Option<&str>| {
        let Some(text) = text else {
            return Vec::new();
        };
        let text = escape_invisible(&indent_json(text));
        let text = if is_alike {
            escape_non_ascii(&text)
        } else {
            text
        };
        let text = clean::escape_text(&text).into_owned();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if lines.len() > VALUE_LINES_MAX {
            lines.truncate(VALUE_LINES_MAX);
            lines.push("…".to_owned());
        }
        lines
    };
    (lines(old), lines(new))
}

/// Escapes invisible and combining characters.
pub(super) fn escape_invisible(text: &str) -> String {
    escape_where(text, |character| {
        matches!(
            character,
            '\u{300}'..='\u{36f}'
                | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
                | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{e0080}'..='\u{e0fff}'
        )
    })
}

fn escape_non_ascii(text: &str) -> String {
    escape_where(text, |character| !character.is_ascii())
}

fn escape_where(text: &str, must_escape: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if must_escape(character) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_rendered(old: &str, new: &str, old_rendered: &str, new_rendered: &str) {
        let (old, new) = render_pair(Some(old), Some(new));
        assert_eq!(old.join("\n"), old_rendered);
        assert_eq!(new.join("\n"), new_rendered);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_rendered(
            "\"a\u{200b}b\u{e0041}\u{1b}[8m\"",
            "\"x\"",
            "\"a\\u{200b}b\\u{e0041}\\x1b[8m\"",
            "\"x\"",
        );
    }

    #[test]
    fn look_alike_characters_are_escaped() {
        assert_rendered("\"é\"", "\"e\u{301}\"", "\"é\"", "\"e\\u{301}\"");
        assert_rendered("\"ре\"", "\"рe\"", "\"ре\"", "\"рe\"");
        assert_rendered("\"аb\"", "\"ɑb\"", "\"\\u{430}b\"", "\"\\u{251}b\"");
    }

    #[test]
    fn missing_value_is_empty_and_long_truncated() {
        assert_eq!(
            render_pair(None, Some("1")),
            (Vec::new(), vec!["1".to_owned()])
        );
        let long = format!("[{}0]", "0,".repeat(500));
        let (_, new) = render_pair(None, Some(&long));
        assert_eq!(new.len(), VALUE_LINES_MAX + 1);
    }
}
