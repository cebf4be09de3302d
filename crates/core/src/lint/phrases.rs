//! Injection phrases: instructions for the model behind the user's back.

use super::characters;

/// In lower case, with single spaces.
const PHRASES: [&str; 42] = [
    "<important>",
    "</important>",
    "<system>",
    "</system>",
    "<secret>",
    "<hidden>",
    "<instructions>",
    "[inst]",
    "<|im_start|>",
    "<|system|>",
    "do not tell the user",
    "don't tell the user",
    "do not inform the user",
    "don't inform the user",
    "do not mention this to the user",
    "do not show this to the user",
    "don't show this to the user",
    "do not let the user know",
    "never tell the user",
    "without telling the user",
    "without informing the user",
    "hide this from the user",
    "keep this secret from the user",
    "ignore previous instructions",
    "ignore all previous instructions",
    "ignore the previous instructions",
    "ignore prior instructions",
    "ignore all prior instructions",
    "ignore your instructions",
    "disregard previous instructions",
    "disregard all previous instructions",
    "disregard the above",
    "forget previous instructions",
    "override your instructions",
    "reveal your system prompt",
    "before using any other tool",
    "~/.ssh",
    "id_rsa",
    "id_ed25519",
    ".aws/credentials",
    ".cursor/mcp.json",
    "/etc/shadow",
];

/// Returns the first phrase in a text, ignoring case, spacing and invisible characters.
pub(super) fn find_phrase(text: &str) -> Option<&'static str> {
    let mut flat = String::with_capacity(text.len());
    for character in text
        .chars()
        .filter(|character| !characters::is_hidden(*character))
    {
        match character {
            '’' | '‘' => flat.push('\''),
            character if character.is_whitespace() || character.is_control() => {
                if !flat.ends_with(' ') {
                    flat.push(' ');
                }
            }
            character => flat.push(character.to_ascii_lowercase()),
        }
    }
    PHRASES.into_iter().find(|phrase| flat.contains(phrase))
}
