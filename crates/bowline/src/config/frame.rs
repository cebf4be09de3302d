//! What is wrong with a config file, shown at its place in the file.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One fault of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The bytes of the file that are at fault.
    pub span: Range<usize>,
    /// What is wrong, as one clause.
    pub message: String,
    /// What to say under the caret.
    pub label: String,
    /// The command or the change that mends it.
    pub help: Option<String>,
}

/// A place in a file as editors count: from one, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from one.
    pub line: usize,
    /// Column in characters, from one.
    pub column: usize,
}

impl Problem {
    pub(crate) fn new(
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Self {
            span,
            message: message.into(),
            label: label.into(),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The code frame of this problem: message, `file:line:column`, source line, caret, help.
    #[must_use]
    pub fn frame(&self, path: &str, text: &str) -> String {
        let span = within(text, &self.span);
        let snippet = Snippet::source(text).path(path).annotation(
            AnnotationKind::Primary
                .span(span)
                .label(self.label.as_str()),
        );
        let mut group = Level::ERROR
            .primary_title(self.message.as_str())
            .id("config")
            .element(snippet);
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        Renderer::plain().render(&[group])
    }
}

/// Where byte `at` of `text` stands.
#[must_use]
pub fn place(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).unwrap_or_default().chars().count() + 1;
    Place { line, column }
}

/// The byte at a line and a byte column, both from one, as serde_json counts.
pub(crate) fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// A span that a renderer can show: inside the text and at character borders.
fn within(text: &str, span: &Range<usize>) -> Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    // A table's span may run over many lines; its first line says enough.
    let shown = text.get(start..end).unwrap_or_default();
    let end = shown.find('\n').map_or(end, |newline| start + newline);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_shows_the_line_the_caret_and_the_help() {
        let text = "[gateway]\nlisten = 3\n";
        let problem = Problem::new(19..20, "`listen` is wrong", "a number").help("write text");
        assert_eq!(
            problem.frame("x.toml", text),
            "error[config]: `listen` is wrong\n \
             --> x.toml:2:10\n  \
             |\n\
             2 | listen = 3\n  \
             |          ^ a number\n  \
             |\n  \
             = help: write text"
        );
    }

    #[test]
    fn columns_count_characters_and_lines_count_from_one() {
        assert_eq!(place("aß\ncd", 0), Place { line: 1, column: 1 });
        assert_eq!(place("aß\ncd", 3), Place { line: 1, column: 3 });
        assert_eq!(place("aß\ncd", 5), Place { line: 2, column: 2 });
    }

    #[test]
    fn a_span_outside_the_text_still_renders() {
        let problem = Problem::new(50..90, "m", "l");
        assert!(
            problem
                .frame("x", "a = 1\n")
                .starts_with("error[config]: m")
        );
        let split = Problem::new(1..2, "m", "l");
        assert!(split.frame("x", "ß = 1\n").contains("ß = 1"));
    }
}
