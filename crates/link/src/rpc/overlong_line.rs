//! Finds the id of a response that is too long to be kept.

use crate::demux::parse_own_id;

/// Longest relevant key and id.
const CAPTURE_BYTES_MAX: usize = 32;

/// Scanner of a line that is discarded as it arrives. Tracks only the members of the outermost
/// object, without validation.
#[derive(Debug, Default)]
pub(super) struct OverlongLine {
    /// Bytes scanned.
    length: usize,
    /// Open arrays and objects.
    depth: usize,
    text: StringState,
    member: MemberState,
    /// Current key or id.
    captured: Vec<u8>,
    /// Complete id.
    id: Option<Vec<u8>>,
    /// Whether the line is no response: it has a `method` member, or two ids.
    is_not_response: bool,
}

/// Position relative to a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringState {
    #[default]
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

/// Current part of the outermost object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MemberState {
    #[default]
    Key,
    Id,
    Other,
}

impl OverlongLine {
    /// Scans the next bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.length += bytes.len();
        for &byte in bytes {
            self.scan_byte(byte);
        }
    }

    /// Returns the length so far.
    pub(super) const fn length(&self) -> usize {
        self.length
    }

    /// Returns our request id if the line is a response.
    pub(super) fn response_id(&self) -> Option<u64> {
        if self.is_not_response || self.depth != 0 {
            return None;
        }
        parse_own_id(self.id.as_deref()?.trim_ascii())
    }

    fn scan_byte(&mut self, byte: u8) {
        match (self.text, byte) {
            (StringState::Escaped, _) => self.text = StringState::Inside,
            (StringState::Inside, b'\\') => self.text = StringState::Escaped,
            (StringState::Inside, b'"') => self.text = StringState::Outside,
            (StringState::Inside, _) => {}
            (StringState::Outside, b'"') => self.text = StringState::Inside,
            (StringState::Outside, b'{' | b'[') => {
                self.depth += 1;
                if self.depth == 1 {
                    // An array has no id.
                    self.is_not_response |= byte == b'[';
                    return;
                }
            }
            (StringState::Outside, b'}' | b']') => {
                if self.depth == 1 {
                    self.end_member();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            (StringState::Outside, b':') if self.depth == 1 => return self.end_key(),
            (StringState::Outside, b',') if self.depth == 1 => return self.end_member(),
            (StringState::Outside, _) => {}
        }
        if self.depth == 1 && self.member != MemberState::Other {
            self.capture_byte(byte);
        }
    }

    fn capture_byte(&mut self, byte: u8) {
        if self.captured.len() < CAPTURE_BYTES_MAX {
            self.captured.push(byte);
        } else {
            // Too long for an of our keys or ids.
            self.captured.clear();
            self.captured.push(b'?');
        }
    }

    fn end_key(&mut self) {
        self.member = match self.captured.trim_ascii() {
            br#""id""# => MemberState::Id,
            br#""method""# => {
                self.is_not_response = true;
                MemberState::Other
            }
            _ => MemberState::Other,
        };
        self.captured.clear();
    }

    fn end_member(&mut self) {
        if self.member == MemberState::Id {
            self.is_not_response |= self.id.is_some();
            self.id = Some(std::mem::take(&mut self.captured));
        }
        self.captured.clear();
        self.member = MemberState::Key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_id_is_found_in_any_position() {
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
            let mut whole = OverlongLine::default();
            whole.push(line.as_bytes());
            assert_eq!(whole.response_id(), want, "{line}");
            let mut bytewise = OverlongLine::default();
            for byte in line.bytes() {
                bytewise.push(&[byte]);
            }
            assert_eq!(
                (bytewise.response_id(), bytewise.length()),
                (want, line.len())
            );
        }
    }
}
