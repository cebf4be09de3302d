//! Lints tool definitions for texts that deceive people or models.
//!
//! Linear in the length of the text and the number of words. A finding is a hint for a person, or
//! under `block` a reason to require review.

mod characters;
mod name_registry;
mod phrases;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use name_registry::NameRegistry;

/// Findings per tool.
pub const FINDINGS_MAX: usize = 16;

/// Clients refuse or truncate longer names.
pub const NAME_CHARS_MAX: usize = 128;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LintCode {
    /// Characters invisible to people but read by models.
    HiddenText,
    /// Characters that move, hide or overwrite terminal text.
    Control,
    /// A lookalike name.
    Homoglyph,
    /// Instructions for the model behind the user's back.
    Injection,
    /// Mention of a tool of a different server.
    CrossServer,
    /// A name too long for clients.
    LongName,
}

impl LintCode {
    /// Every code.
    pub const ALL: [Self; 6] = [
        Self::HiddenText,
        Self::Control,
        Self::Homoglyph,
        Self::Injection,
        Self::CrossServer,
        Self::LongName,
    ];

    /// Returns the word used in annotations, files and API.
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

    /// Parses the word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == word)
    }
}

/// One finding with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintFinding {
    /// The kind of the finding.
    pub code: LintCode,
    /// The member of the definition.
    pub location: Arc<str>,
    /// Details, in plain letters.
    pub detail: Arc<str>,
}

/// One text of a definition: a member value or a key.
#[derive(Clone, Copy, Debug)]
pub struct LintText<'a> {
    /// The member of the definition.
    pub location: &'a str,
    /// The text.
    pub text: &'a str,
}

/// The findings of one tool so far; each code at most once per location.
#[derive(Debug, Default)]
pub struct LintFindings(Vec<LintFinding>);

impl LintFindings {
    /// Checks the name of a tool of `server`.
    pub fn check_name(&mut self, server: &str, name: &str, names: &NameRegistry) {
        const PLACE: &str = "name";
        let chars = name.chars().count();
        if chars > NAME_CHARS_MAX {
            self.add_finding(LintCode::LongName, PLACE, &format!("{chars} characters"));
        }
        if let Some(scripts) = characters::mixed_scripts(name) {
            self.add_finding(LintCode::Homoglyph, PLACE, scripts);
        }
        if let Some(like) = names.find_confusable(server, name) {
            let detail = format!("looks like `{like}`");
            self.add_finding(LintCode::Homoglyph, PLACE, &detail);
        }
    }

    /// Checks one text of a tool of `server`, including the name.
    pub fn check_text(&mut self, server: &str, piece: LintText<'_>, names: &NameRegistry) {
        self.check_key(piece);
        if let Some(mention) = names.find_mention(server, piece.text) {
            let detail = format!("names `{mention}`");
            self.add_finding(LintCode::CrossServer, piece.location, &detail);
        }
    }

    /// Checks a member name, which may equal a tool name by chance.
    pub fn check_key(&mut self, piece: LintText<'_>) {
        let LintText { location, text } = piece;
        if let Some(character) = characters::find_hidden(text) {
            self.add_finding(
                LintCode::HiddenText,
                location,
                &format_code_point(character),
            );
        }
        if let Some(character) = characters::find_control(text) {
            self.add_finding(LintCode::Control, location, &format_code_point(character));
        }
        if let Some(phrase) = phrases::find_phrase(text) {
            self.add_finding(LintCode::Injection, location, phrase);
        }
    }

    /// Records an unreadable text.
    pub fn add_unreadable(&mut self, location: &str) {
        self.add_finding(LintCode::HiddenText, location, "half a character");
    }

    /// Returns the findings.
    #[must_use]
    pub fn into_vec(self) -> Vec<LintFinding> {
        self.0
    }

    fn add_finding(&mut self, code: LintCode, location: &str, detail: &str) {
        let is_same =
            |finding: &LintFinding| finding.code == code && &*finding.location == location;
        if self.0.len() < FINDINGS_MAX && !self.0.iter().any(is_same) {
            self.0.push(LintFinding {
                code,
                location: characters::escape_hidden(location).into(),
                detail: characters::escape_hidden(detail).into(),
            });
        }
    }
}

/// Returns the distinct codes of the findings, sorted.
#[must_use]
pub fn finding_codes(findings: &[LintFinding]) -> Vec<LintCode> {
    let mut codes: Vec<_> = findings.iter().map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

fn format_code_point(character: char) -> String {
    format!("U+{:04X}", u32::from(character))
}
