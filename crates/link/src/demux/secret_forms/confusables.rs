//! Splits text into words like a human reader: look-alike letters, leetspeak and zero-width
//! characters are normalized.

/// Pairs of a foreign letter and a similar Latin letter.
const LOOKALIKES: &str = "\
аaеeоoрpсcуyхxіiјjѕsԁdһhԛqԝwкkмmтtвbнhԍgпnαaοoρpεeιiκkνvτtυuωwχxγyηnβbսuոnօoսu\
ᴀaʙbᴄcᴅdᴇeꜰfɢgʜhɪiᴊjᴋkʟlᴍmɴnᴏoᴘpʀrꜱsᴛtᴜuᴠvᴡwʏyᴢzıiłløoɡgɑaáaàaâaäaãaåaāaéeèeêeëeēeíiìiîiïi\
óoòoôoöoõoōoúuùuûuüuūuñnçcýyšsžzčcßs";

/// Digits and symbols used as letters.
const LEET: [(char, char); 9] = [
    ('0', 'o'),
    ('1', 'i'),
    ('3', 'e'),
    ('4', 'a'),
    ('5', 's'),
    ('7', 't'),
    ('@', 'a'),
    ('$', 's'),
    ('!', 'i'),
];

/// Returns the lower-case words of a text twice: unchanged, and with leetspeak decoded. A row of
/// single letters becomes a word.
pub(super) fn split_words(text: &str) -> [Vec<String>; 2] {
    let plain: Vec<_> = text
        .chars()
        .filter(|c| !is_invisible(*c))
        .map(to_plain_letter)
        .collect();
    let leet = plain.iter().map(|c| {
        let known = LEET.iter().find(|(sign, _)| sign == c);
        known.map_or(*c, |(_, letter)| *letter)
    });
    [split_letters(plain.iter().copied()), split_letters(leet)]
}

/// Whether a character has no width and can only hide a word.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}'
            | '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}'
    )
}

/// Returns the plain letter of a look-alike, with case if known.
fn to_plain_letter(c: char) -> char {
    let code = u32::from(c);
    let letter = |nth: u32| char::from_u32(u32::from(b'a') + nth % 26).unwrap_or(c);
    match code {
        0..0x80 => c,
        // Full width, mathematical and circled.
        0xff01..=0xff5e => char::from_u32(code - 0xfee0).unwrap_or(c),
        0x1d400..=0x1d6a3 => letter(code - 0x1d400),
        0x1d7ce..=0x1d7ff => char::from_digit((code - 0x1d7ce) % 10, 10).unwrap_or(c),
        0x24b6..=0x24e9 => letter(code - 0x24b6),
        0x212a => 'k',
        _ => {
            let lower = c.to_lowercase().next().unwrap_or(c);
            let mut pairs = LOOKALIKES.chars();
            while let (Some(odd), Some(letter)) = (pairs.next(), pairs.next()) {
                if odd == lower && c.is_uppercase() {
                    return letter.to_ascii_uppercase();
                }
                if odd == lower {
                    return letter;
                }
            }
            c
        }
    }
}

fn split_letters(letters: impl Iterator<Item = char>) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in letters {
        if !c.is_alphanumeric() || (c.is_uppercase() && after_lower) {
            words.push(String::new());
        }
        after_lower = c.is_lowercase();
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    join_spelled_words(words)
}

/// Joins `p a s s` into a word.
fn join_spelled_words(words: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::with_capacity(words.len());
    let mut in_row = false;
    for word in words {
        let is_single = word.chars().nth(1).is_none();
        match joined.last_mut() {
            Some(last) if is_single && in_row => last.push_str(&word),
            _ => joined.push(word),
        }
        in_row = is_single;
    }
    joined
}
