//! Invisible, control and lookalike characters.

use std::fmt::Write as _;

/// Locations and details are truncated to this length.
const SHOWN_CHARS_MAX: usize = 200;

/// Returns the first invisible character. Joiners within emoji, or within scripts that need
/// joiners, are accepted.
pub(super) fn find_hidden(text: &str) -> Option<char> {
    let mut before = None;
    for (at, character) in text.char_indices() {
        let rest = || text.get(at + character.len_utf8()..).unwrap_or_default();
        if is_hidden(character) && !is_joining(before, character, rest().chars().next()) {
            return Some(character);
        }
        before = Some(character);
    }
    None
}

/// Returns the first terminal control character. Line ends and tabs are accepted; a carriage return
/// without a line feed is not.
pub(super) fn find_control(text: &str) -> Option<char> {
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let is_fine = match character {
            '\n' | '\t' => true,
            '\r' => matches!(characters.peek(), None | Some('\n')),
            character => !character.is_control(),
        };
        if !is_fine {
            return Some(character);
        }
    }
    None
}

/// Whether the character is invisible.
pub(super) const fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}' | '\u{1160}'
            | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether an invisible character has a legitimate function between its neighbours.
fn is_joining(before: Option<char>, character: char, after: Option<char>) -> bool {
    let Some(before) = before else {
        // A byte order mark at the start is harmless.
        return character == '\u{feff}';
    };
    match character {
        // Variation selector for the preceding symbol; a sequence of selectors carries a message.
        '\u{fe0e}' | '\u{fe0f}' => !before.is_ascii_alphabetic() && !is_hidden(before),
        // Joins emoji, and letters of Arabic and Indic scripts.
        '\u{200c}' | '\u{200d}' => {
            let joins = |character: char| character >= '\u{600}';
            let before = joins(before) && (!is_hidden(before) || before == '\u{fe0f}');
            before && after.is_some_and(|after| joins(after) && !is_hidden(after))
        }
        _ => false,
    }
}

/// Returns the mix of scripts with lookalike letters in a name, if any.
pub(super) fn mixed_scripts(name: &str) -> Option<&'static str> {
    let has = |script: fn(char) -> bool| name.chars().any(script);
    let latin = has(|letter| letter.is_ascii_alphabetic() || is_latin(letter));
    let (cyrillic, greek) = (has(is_cyrillic), has(is_greek));
    match (latin, cyrillic, greek) {
        (true, true, _) => Some("mixes Latin and Cyrillic letters"),
        (true, false, true) => Some("mixes Latin and Greek letters"),
        (false, true, true) => Some("mixes Cyrillic and Greek letters"),
        _ if has(is_disguised_form) => Some("has letters in disguise"),
        _ => None,
    }
}

const fn is_latin(letter: char) -> bool {
    matches!(letter, '\u{c0}'..='\u{24f}')
}

const fn is_cyrillic(letter: char) -> bool {
    matches!(letter, '\u{400}'..='\u{52f}' | '\u{1c80}'..='\u{1c8f}' | '\u{2de0}'..='\u{2dff}')
}

const fn is_greek(letter: char) -> bool {
    matches!(letter, '\u{370}'..='\u{3ff}' | '\u{1f00}'..='\u{1fff}')
}

/// Full-width and mathematical forms of plain letters.
const fn is_disguised_form(character: char) -> bool {
    matches!(character, '\u{ff01}'..='\u{ff5e}' | '\u{1d400}'..='\u{1d7ff}')
}

/// Returns the visual skeleton of a name; lookalike names share a skeleton.
pub(super) fn name_skeleton(name: &str) -> String {
    let characters = name.chars().filter(|character| !is_hidden(*character));
    characters
        .flat_map(char::to_lowercase)
        .map(base_letter)
        .collect()
}

/// Returns the plain letter a character looks like.
fn base_letter(character: char) -> char {
    match character {
        'а' | 'α' | 'ɑ' => 'a',
        'ь' | 'Ь' => 'b',
        'с' | 'ϲ' => 'c',
        'ԁ' => 'd',
        'е' | 'ё' | 'ε' => 'e',
        'ց' | 'ɡ' => 'g',
        'һ' | 'հ' => 'h',
        'і' | 'ı' | 'ι' | 'ї' => 'i',
        'ј' | 'ϳ' => 'j',
        'к' | 'κ' => 'k',
        'ӏ' | 'ⅼ' => 'l',
        'м' | 'μ' => 'm',
        'п' | 'η' | 'ո' => 'n',
        'о' | 'ο' | 'օ' | 'σ' => 'o',
        'р' | 'ρ' => 'p',
        'ԛ' => 'q',
        'г' | 'ɾ' => 'r',
        'ѕ' => 's',
        'т' | 'τ' => 't',
        'υ' | 'ս' => 'u',
        'ν' | 'ѵ' => 'v',
        'ѡ' | 'ԝ' | 'ω' => 'w',
        'х' | 'χ' => 'x',
        'у' | 'γ' | 'ү' => 'y',
        'ᴢ' | 'ζ' => 'z',
        '‐' | '‑' | '‒' | '–' | '−' => '-',
        '＿' | '‗' => '_',
        // Full-width forms follow the order of ASCII.
        '\u{ff01}'..='\u{ff5e}' => {
            let ascii = u32::from(character) - 0xff01 + 0x21;
            char::from_u32(ascii).map_or(character, |plain| plain.to_ascii_lowercase())
        }
        character => character,
    }
}

/// Returns the text with invisible characters escaped, truncated if long.
pub(super) fn escape_hidden(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars().take(SHOWN_CHARS_MAX) {
        if character.is_control() || is_hidden(character) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}
