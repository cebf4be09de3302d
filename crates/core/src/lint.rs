//! Looks at the definition of a tool for what is there to deceive people or models.
//!
//! Linear in the text and in the number of its words; what is found is a hint for a person, and
//! under `block` a reason to ask one.

mod letters;
mod names;
mod phrases;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use names::Names;

/// Findings that are kept of one tool.
pub const FINDINGS_MAX: usize = 16;

/// Names longer than this are refused or cut by clients.
pub const NAME_CHARS_MAX: usize = 128;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// Characters that people do not see and models read.
    HiddenText,
    /// Characters that move, hide or overwrite text on a terminal.
    Control,
    /// A name that looks like another.
    Homoglyph,
    /// Words that are meant for a model behind the back of its user.
    Injection,
    /// Words about a tool of another server.
    CrossServer,
    /// A name longer than clients take.
    LongName,
}

impl Code {
    /// Every code.
    pub const ALL: [Self; 6] = [
        Self::HiddenText,
        Self::Control,
        Self::Homoglyph,
        Self::Injection,
        Self::CrossServer,
        Self::LongName,
    ];

    /// Returns the word used in marks, files and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HiddenText => "hidden_text",
            Self::Control => "control",
            Self::Homoglyph => "homoglyph",
            Self::Injection => "injection",
            Self::CrossServer => "cross_server",
            Self::LongName => "long_name",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == word)
    }
}

/// One thing that was found, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is.
    pub code: Code,
    /// In which member of the definition.
    pub place: Arc<str>,
    /// What it is exactly, in plain letters.
    pub detail: Arc<str>,
}

/// One text of a definition: the value of a member, or a key.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Where it stands.
    pub place: &'a str,
    /// The text.
    pub text: &'a str,
}

/// What was found of one tool so far, each code at most once at one place.
#[derive(Debug, Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// Looks at the name of a tool of `server`.
    pub fn name(&mut self, server: &str, name: &str, names: &Names) {
        const PLACE: &str = "name";
        let chars = name.chars().count();
        if chars > NAME_CHARS_MAX {
            self.add(Code::LongName, PLACE, &format!("{chars} characters"));
        }
        if let Some(scripts) = letters::mixed(name) {
            self.add(Code::Homoglyph, PLACE, scripts);
        }
        if let Some(like) = names.confusable(server, name) {
            let detail = format!("looks like `{like}`");
            self.add(Code::Homoglyph, PLACE, &detail);
        }
    }

    /// Looks at one text of a tool of `server`; its name is one of them.
    pub fn piece(&mut self, server: &str, piece: Piece<'_>, names: &Names) {
        self.key(piece);
        if let Some(mention) = names.mentioned(server, piece.text) {
            let detail = format!("names `{mention}`");
            self.add(Code::CrossServer, piece.place, &detail);
        }
    }

    /// Looks at the name of a member, which may be called like a tool without meaning it.
    pub fn key(&mut self, piece: Piece<'_>) {
        let Piece { place, text } = piece;
        if let Some(letter) = letters::hidden(text) {
            self.add(Code::HiddenText, place, &code_point(letter));
        }
        if let Some(letter) = letters::control(text) {
            self.add(Code::Control, place, &code_point(letter));
        }
        if let Some(phrase) = phrases::find(text) {
            self.add(Code::Injection, place, phrase);
        }
    }

    /// Notes a text that cannot be read.
    pub fn unreadable(&mut self, place: &str) {
        self.add(Code::HiddenText, place, "half a character");
    }

    /// Returns what was found.
    #[must_use]
    pub fn into_vec(self) -> Vec<Finding> {
        self.0
    }

    fn add(&mut self, code: Code, place: &str, detail: &str) {
        let is_same = |known: &Finding| known.code == code && &*known.place == place;
        if self.0.len() < FINDINGS_MAX && !self.0.iter().any(is_same) {
            self.0.push(Finding {
                code,
                place: letters::shown(place).into(),
                detail: letters::shown(detail).into(),
            });
        }
    }
}

/// Returns the codes of some findings, each once, in order.
#[must_use]
pub fn codes(findings: &[Finding]) -> Vec<Code> {
    let mut codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn code_point(letter: char) -> String {
    format!("U+{:04X}", u32::from(letter))
}
