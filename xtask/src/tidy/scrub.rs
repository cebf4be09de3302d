//! Blanks comments and literals in Rust source, so that rules see code only.

use std::{iter::Peekable, ops::Range, str::Chars};

/// Returns the same text, line for line and column for column, with the content of comments,
/// strings and character literals replaced by spaces.
pub(super) fn blank_comments_and_literals(text: &str) -> String {
    let mut scrubber = Scrubber {
        chars: text.chars().peekable(),
        out: String::new(),
    };
    scrubber.scrub_all();
    scrubber.out
}

/// Returns the lines (0-based) of in-file test modules: `#[cfg(test)]` to the closing brace.
pub(super) fn test_lines(code: &str) -> Vec<Range<usize>> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if lines.get(at).is_some_and(|line| is_test_attribute(line)) {
            let end = item_end(&lines, at);
            found.push(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
    found
}

fn is_test_attribute(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,")
}

/// Returns the line after the item that the attribute at `from` belongs to.
fn item_end(lines: &[&str], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, line) in lines.iter().enumerate().skip(from) {
        let line = if at == from {
            line.replacen("#[cfg(test)]", "", 1)
        } else {
            line.to_string()
        };
        for c in line.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                ';' if depth == 0 => return at + 1,
                _ => {}
            }
            if c == '}' && depth == 0 {
                return at + 1;
            }
        }
    }
    lines.len()
}

struct Scrubber<'a> {
    chars: Peekable<Chars<'a>>,
    out: String,
}

impl Scrubber<'_> {
    fn scrub_all(&mut self) {
        let mut last = ' ';
        while let Some(c) = self.chars.next() {
            match c {
                '/' if self.chars.peek() == Some(&'/') => self.blank_line_comment(),
                '/' if self.chars.peek() == Some(&'*') => self.blank_block_comment(),
                '"' => self.blank_string(),
                'r' if !is_word(last) || last == 'b' || last == 'c' => self.blank_raw_string(),
                '\'' => self.blank_char(),
                _ => self.out.push(c),
            }
            last = c;
        }
    }

    fn push_blank(&mut self, c: char) {
        self.out.push(if c == '\n' { '\n' } else { ' ' });
    }

    fn blank_line_comment(&mut self) {
        self.out.push(' ');
        while let Some(c) = self.chars.next_if(|c| *c != '\n') {
            self.push_blank(c);
        }
    }

    fn blank_block_comment(&mut self) {
        self.out.push(' ');
        let mut depth = 0_usize;
        let mut last = '/';
        while let Some(c) = self.chars.next() {
            self.push_blank(c);
            match (last, c) {
                ('/', '*') => (depth, last) = (depth + 1, ' '),
                ('*', '/') if depth <= 1 => return,
                ('*', '/') => (depth, last) = (depth - 1, ' '),
                _ => last = c,
            }
        }
    }

    fn blank_string(&mut self) {
        self.out.push('"');
        while let Some(c) = self.chars.next() {
            match c {
                '"' => return self.out.push('"'),
                '\\' => {
                    self.push_blank(c);
                    if let Some(escaped) = self.chars.next() {
                        self.push_blank(escaped);
                    }
                }
                _ => self.push_blank(c),
            }
        }
    }

    /// After an `r`: a raw string `r"…"`, `r#"…"#`, a raw identifier `r#type`, or only the letter.
    fn blank_raw_string(&mut self) {
        self.out.push('r');
        let mut ahead = self.chars.clone();
        let mut hashes = 0;
        while ahead.next_if_eq(&'#').is_some() {
            hashes += 1;
        }
        if ahead.next() != Some('"') {
            return;
        }
        self.chars = ahead;
        self.out
            .extend(std::iter::repeat_n('#', hashes).chain(['"']));
        while let Some(c) = self.chars.next() {
            let mut ahead = self.chars.clone();
            if c == '"' && (0..hashes).all(|_| ahead.next() == Some('#')) {
                self.chars = ahead;
                self.out
                    .extend(['"'].into_iter().chain(std::iter::repeat_n('#', hashes)));
                return;
            }
            self.push_blank(c);
        }
    }

    /// After a `'`: a character literal, or the start of a lifetime.
    fn blank_char(&mut self) {
        self.out.push('\'');
        let mut ahead = self.chars.clone();
        match (ahead.next(), ahead.next()) {
            (Some('\\'), _) => {
                self.chars.next();
                self.out.push(' ');
                // The escaped character may be a quote.
                if let Some(c) = self.chars.next() {
                    self.push_blank(c);
                }
                while let Some(c) = self.chars.next_if(|c| *c != '\'' && *c != '\n') {
                    self.push_blank(c);
                }
                if self.chars.next_if_eq(&'\'').is_some() {
                    self.out.push('\'');
                }
            }
            (Some(c), Some('\'')) => {
                self.chars = ahead;
                self.push_blank(c);
                self.out.push('\'');
            }
            _ => {}
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_scrubbed(source: &str, code: &str) {
        assert_eq!(blank_comments_and_literals(source), code, "of {source:?}");
        assert_eq!(
            source.chars().count(),
            code.chars().count(),
            "columns move in {source:?}"
        );
    }

    #[test]
    fn comments_and_literals_are_blanked() {
        assert_scrubbed("a // b\nc", "a     \nc");
        assert_scrubbed("a /* b /* c */ d */ e", "a                   e");
        assert_scrubbed(r#"f("x\"y", z)"#, r#"f("    ", z)"#);
        assert_scrubbed(r##"f(r#"x"y"#, z)"##, r##"f(r#"   "#, z)"##);
        assert_scrubbed(r#"f(b"x", br"y")"#, r#"f(b" ", br" ")"#);
        assert_scrubbed("'a', '\\'', '\"', '\\u{1F}'", "' ', '  ', ' ', '      '");
        assert_scrubbed("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        assert_scrubbed("r#type + rest", "r#type + rest");
    }

    #[test]
    fn test_module_ends_at_closing_brace() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        assert_eq!(test_lines(code).first(), Some(&(1..5)));
    }

    #[test]
    fn platform_test_module_counts() {
        let code = "#[cfg(all(test, unix))]\nmod tests {\n}\nfn c() {}\n";
        assert_eq!(test_lines(code).first(), Some(&(0..3)));
    }

    #[test]
    fn test_module_declaration_takes_two_lines() {
        let code = "#[cfg(test)]\nmod tests;\nfn c() {}\n";
        assert_eq!(test_lines(code).first(), Some(&(0..2)));
    }
}
