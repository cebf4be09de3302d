//! Values of definitions side by side: what cannot be seen, or looks the same, is made visible.

use std::fmt::Write as _;

use super::super::clean;
use super::super::pretty::pretty;

/// Lines of one value that are shown.
const LINES_MAX: usize = 60;

/// Returns the lines of an old and a new value. Where they differ in letters that look alike, all
/// letters but plain ones are spelt out.
pub(super) fn pair(old: Option<&str>, new: Option<&str>) -> (Vec<String>, Vec<String>) {
    let plain = |text: Option<&str>| -> Option<String> {
        let text = text?.chars();
        Some(text.filter(char::is_ascii).collect())
    };
    let is_alike = old.is_some() && plain(old) == plain(new);
    let lines = |text: Option<&str>| {
        let Some(text) = text else {
            return Vec::new();
        };
        let text = visible(&pretty(text));
        let text = if is_alike { spelt(&text) } else { text };
        let text = clean::text(&text).into_owned();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if lines.len() > LINES_MAX {
            lines.truncate(LINES_MAX);
            lines.push("…".to_owned());
        }
        lines
    };
    (lines(old), lines(new))
}

/// Spells out what is not drawn, or is drawn into the letter before it.
pub(super) fn visible(text: &str) -> String {
    spell(text, |letter| {
        matches!(
            letter,
            '\u{300}'..='\u{36f}'
                | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}'
                | '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{e0080}'..='\u{e0fff}'
        )
    })
}

fn spelt(text: &str) -> String {
    spell(text, |letter| !letter.is_ascii())
}

fn spell(text: &str, is_spelt: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_spelt(letter) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(letter));
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, want: (&str, &str)) {
        let (old, new) = pair(Some(old), Some(new));
        assert_eq!(
            (old.join("\n"), new.join("\n")),
            (want.0.into(), want.1.into())
        );
    }

    #[test]
    fn what_cannot_be_seen_is_spelt_out() {
        check(
            "\"a\u{200b}b\u{e0041}\u{1b}[8m\"",
            "\"x\"",
            ("\"a\\u{200b}b\\u{e0041}\\x1b[8m\"", "\"x\""),
        );
    }

    #[test]
    fn what_looks_the_same_is_spelt_out() {
        check("\"é\"", "\"e\u{301}\"", ("\"é\"", "\"e\\u{301}\""));
        check("\"ре\"", "\"рe\"", ("\"ре\"", "\"рe\""));
        check("\"аb\"", "\"ɑb\"", ("\"\\u{430}b\"", "\"\\u{251}b\""));
    }

    #[test]
    fn a_value_that_is_not_there_has_no_lines_and_a_long_one_ends() {
        assert_eq!(pair(None, Some("1")), (Vec::new(), vec!["1".to_owned()]));
        let long = format!("[{}0]", "0,".repeat(500));
        let (_, new) = pair(None, Some(&long));
        assert_eq!(new.len(), LINES_MAX + 1);
    }
}
