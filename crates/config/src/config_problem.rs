//! Problems of a config file, rendered as code frames.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// A problem of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The faulty bytes of the file.
    pub span: Range<usize>,
    /// The problem, as one clause.
    pub message: String,
    /// Text under the caret.
    pub label: String,
    /// The command or change to fix the problem.
    pub help: Option<String>,
}

/// A position in a file as shown by editors: 1-based, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// Line, 1-based.
    pub line: usize,
    /// Column in characters, 1-based.
    pub column: usize,
}

impl ConfigProblem {
    pub fn new(span: Range<usize>, message: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            label: label.into(),
            help: None,
        }
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Renders the code frame: message, `file:line:column`, source line, caret, help.
    #[must_use]
    pub fn render_frame(&self, path: &str, text: &str) -> String {
        let span = clamp_span(text, &self.span);
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

/// Returns the position of byte `at` in `text`.
#[must_use]
pub fn position_at(text: &str, at: usize) -> FilePosition {
    let before = text.get(..at).unwrap_or(text);
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let column = before.get(start..).unwrap_or_default().chars().count() + 1;
    FilePosition { line, column }
}

/// Returns the byte offset of a 1-based line and byte column, as counted by serde_json.
pub(crate) fn byte_offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text
        .split_inclusive('\n')
        .take(line.saturating_sub(1))
        .map(str::len)
        .sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// Clamps a span to the text and to character boundaries, for rendering.
fn clamp_span(text: &str, span: &Range<usize>) -> Range<usize> {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = span.end.clamp(start, text.len());
    while !text.is_char_boundary(end) {
        end += 1;
    }
    // A table's span may cover many lines; the first line suffices.
    let excerpt = text.get(start..end).unwrap_or_default();
    let end = excerpt.find('\n').map_or(end, |newline| start + newline);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_shows_line_caret_and_help() {
        let text = "[gateway]\nlisten = 3\n";
        let problem =
            ConfigProblem::new(19..20, "`listen` is wrong", "a number").with_help("write text");
        assert_eq!(
            problem.render_frame("x.toml", text),
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
    fn positions_count_characters_from_one() {
        assert_eq!(
            position_at("aß\ncd", 0),
            FilePosition { line: 1, column: 1 }
        );
        assert_eq!(
            position_at("aß\ncd", 3),
            FilePosition { line: 1, column: 3 }
        );
        assert_eq!(
            position_at("aß\ncd", 5),
            FilePosition { line: 2, column: 2 }
        );
    }

    #[test]
    fn out_of_range_span_still_renders() {
        let problem = ConfigProblem::new(50..90, "m", "l");
        assert!(
            problem
                .render_frame("x", "a = 1\n")
                .starts_with("error[config]: m")
        );
        let split = ConfigProblem::new(1..2, "m", "l");
        assert!(split.render_frame("x", "ß = 1\n").contains("ß = 1"));
    }
}
