//! Headers as the text that they are on a connection.

use std::fmt;

use http::{HeaderName, HeaderValue};

/// Headers that many requests share, made once: whole lines, each with its end.
#[derive(Clone, Default)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Adds a header.
    pub fn push(&mut self, name: &HeaderName, value: &HeaderValue) {
        write_line(&mut self.0, name, value);
    }

    /// Returns the other headers.
    #[must_use]
    pub fn without(&self, name: &HeaderName) -> Self {
        let lines = self.0.split_inclusive(|byte| *byte == b'\n');
        let others = lines.filter(|line| value_in(line, name.as_str()).is_none());
        Self(others.flatten().copied().collect())
    }

    /// Returns the lines as they go out.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// They may name a session.
impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines(…)")
    }
}

/// Writes one header with the end of its line. Neither part can hold one itself.
pub(crate) fn write_line(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The headers of an answer. Few are ever asked for, so that they are searched when they are.
#[derive(Clone, Default)]
pub struct Headers(Box<[u8]>);

impl Headers {
    /// Takes lines that were found to be valid, each of them a name, a colon and a value.
    #[must_use]
    pub fn from_lines(lines: &[u8]) -> Self {
        Self(lines.into())
    }

    /// Returns the lines, each with its end, as they came.
    #[must_use]
    pub fn lines(&self) -> &[u8] {
        &self.0
    }

    /// Returns the value of the first header of a name.
    #[must_use]
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        let mut rest = &*self.0;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at_checked(end + 1)?;
            if let Some(value) = value_in(line, name.as_str()) {
                return Some(value);
            }
            rest = after;
        }
        None
    }
}

/// They may name a session.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Headers(…)")
    }
}

/// Returns the value in a line, if it is of that name.
fn value_in<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (start, rest) = line.split_at_checked(name.len())?;
    let value = rest.strip_prefix(b":")?;
    let is_it = start.eq_ignore_ascii_case(name.as_bytes());
    is_it.then(|| value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};

    use super::*;

    #[test]
    fn the_first_header_of_a_name_is_found_in_any_case_and_without_space_around() {
        let lines = b"Content-Type:\t a/b \r\ncontent-type: c\r\nhost:\r\nx-accept: no\r\n\r\n";
        let headers = Headers::from_lines(lines);
        assert_eq!(headers.get(&CONTENT_TYPE), Some(&b"a/b"[..]));
        assert_eq!(headers.get(&HOST), Some(&b""[..]));
        assert_eq!(headers.get(&ACCEPT), None);
        assert_eq!(Headers::default().get(&ACCEPT), None);
    }

    #[test]
    fn lines_are_made_once_and_can_lose_one() {
        let mut lines = Lines::default();
        lines.push(&ACCEPT, &HeaderValue::from_static("a"));
        lines.push(&USER_AGENT, &HeaderValue::from_static("us"));
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("b"));
        let want: &[u8] = b"accept: a\r\ncontent-type: b\r\n";
        assert_eq!(lines.without(&USER_AGENT).as_bytes(), want);
    }
}
