//! Finds out which request a line answers that is too long to be kept.

use crate::desk::own_id;

/// The longest key and the longest id that matter to us.
const CAPTURE_BYTES_MAX: usize = 32;

/// What is known of a line that is thrown away as it comes. Only the members of the outermost
/// object are told apart; nothing is checked.
#[derive(Debug, Default)]
pub(super) struct Overlong {
    /// Bytes seen.
    length: usize,
    /// Arrays and objects that are open.
    depth: usize,
    text: Text,
    member: Member,
    /// The key, or the id, that is being read.
    captured: Vec<u8>,
    /// The id, once it is complete.
    id: Option<Vec<u8>>,
    /// Whether a member was seen that no answer has, or an id twice.
    other: bool,
}

/// Where in a string we are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// Which part of the outermost object is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Member {
    #[default]
    Key,
    Id,
    Other,
}

impl Overlong {
    /// Looks at the next bytes of the line.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        for &byte in bytes {
            self.step(byte);
        }
    }

    /// Returns how long the line is so far.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Returns our id of the request that the line answers, if it is an answer.
    pub(super) fn answers(&self) -> Option<u64> {
        if self.other || self.depth != 0 {
            return None;
        }
        own_id(self.id.as_deref()?.trim_ascii())
    }

    fn step(&mut self, byte: u8) {
        match (self.text, byte) {
            (Text::Escaped, _) => self.text = Text::Inside,
            (Text::Inside, b'\\') => self.text = Text::Escaped,
            (Text::Inside, b'"') => self.text = Text::Outside,
            (Text::Inside, _) => {}
            (Text::Outside, b'"') => self.text = Text::Inside,
            (Text::Outside, b'{' | b'[') => {
                self.depth += 1;
                if self.depth == 1 {
                    // An array holds no id of its own.
                    self.other |= byte == b'[';
                    return;
                }
            }
            (Text::Outside, b'}' | b']') => {
                if self.depth == 1 {
                    self.member_ends();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            (Text::Outside, b':') if self.depth == 1 => return self.key_ends(),
            (Text::Outside, b',') if self.depth == 1 => return self.member_ends(),
            (Text::Outside, _) => {}
        }
        if self.depth == 1 && self.member != Member::Other {
            self.capture(byte);
        }
    }

    fn capture(&mut self, byte: u8) {
        if self.captured.len() < CAPTURE_BYTES_MAX {
            self.captured.push(byte);
        } else {
            // Too long to be one of ours.
            self.captured.clear();
            self.captured.push(b'?');
        }
    }

    fn key_ends(&mut self) {
        self.member = match self.captured.trim_ascii() {
            br#""id""# => Member::Id,
            br#""method""# => {
                self.other = true;
                Member::Other
            }
            _ => Member::Other,
        };
        self.captured.clear();
    }

    fn member_ends(&mut self) {
        if self.member == Member::Id {
            self.other |= self.id.is_some();
            self.id = Some(std::mem::take(&mut self.captured));
        }
        self.captured.clear();
        self.member = Member::Key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_answer_is_found_wherever_it_stands() {
        for (line, want) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#, Some(7)),
            (r#"{"result":{"id":1,"a":[{"id":2}]},"id" : 7 }"#, Some(7)),
            (r#"{"result":"\",\"id\":1,","id":7}"#, Some(7)),
            (r#"{"result":"}{][","id":"7"}"#, Some(7)),
            (r#"{"error":{"code":1},"id":7}"#, Some(7)),
            (r#"{"id":7,"method":"x"}"#, None),
            (r#"{"id":7,"id":8,"result":1}"#, None),
            (r#"{"id":"x7","result":1}"#, None),
            (r#"{"id":{"id":7},"result":1}"#, None),
            (r#"{"id":null,"error":1}"#, None),
            (r#"[{"id":7,"result":1}]"#, None),
            (r#"{"result":{"id":7}"#, None),
            (r#"noise, with "id":7, in it"#, None),
            ("", None),
        ] {
            let mut whole = Overlong::default();
            whole.push(line.as_bytes());
            assert_eq!(whole.answers(), want, "{line}");
            let mut bytewise = Overlong::default();
            for byte in line.bytes() {
                bytewise.push(&[byte]);
            }
            assert_eq!((bytewise.answers(), bytewise.length()), (want, line.len()));
        }
    }
}
