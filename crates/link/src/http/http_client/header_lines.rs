//! Headers in wire form, as lines of text.

use std::fmt;

use http::{HeaderName, HeaderValue};

/// Header lines shared by many requests, each with a line end.
#[derive(Clone, Default)]
pub struct HeaderLines(Vec<u8>);

impl HeaderLines {
    /// Adds a header.
    pub fn push(&mut self, name: &HeaderName, value: &HeaderValue) {
        write_header_line(&mut self.0, name, value);
    }

    /// Returns all lines except the given header.
    #[must_use]
    pub fn without_header(&self, name: &HeaderName) -> Self {
        let lines = self.0.split_inclusive(|byte| *byte == b'\n');
        let others = lines.filter(|line| header_value(line, name.as_str()).is_none());
        Self(others.flatten().copied().collect())
    }

    /// Returns the lines in wire form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Hidden, as the lines may name a session.
impl fmt::Debug for HeaderLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderLines(…)")
    }
}

/// Writes a header line. Name and value cannot contain a line end.
pub fn write_header_line(out: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Response headers. Few are ever read, so lookups search the lines.
#[derive(Clone, Default)]
pub struct ResponseHeaders(Box<[u8]>);

impl ResponseHeaders {
    /// Takes valid header lines: name, colon, value.
    #[must_use]
    pub fn from_lines(lines: &[u8]) -> Self {
        Self(lines.into())
    }

    /// Returns the raw lines with line ends.
    #[must_use]
    pub fn lines(&self) -> &[u8] {
        &self.0
    }

    /// Returns the first value of a header.
    #[must_use]
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        let mut rest = &*self.0;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at_checked(end + 1)?;
            if let Some(value) = header_value(line, name.as_str()) {
                return Some(value);
            }
            rest = after;
        }
        None
    }
}

/// Hidden, as the lines may name a session.
impl fmt::Debug for ResponseHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseHeaders(…)")
    }
}

/// Returns the value of a line if the name matches.
fn header_value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
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
    fn header_lookup_ignores_case_and_outer_space() {
        let lines = b"Content-Type:\t a/b \r\ncontent-type: c\r\nhost:\r\nx-accept: no\r\n\r\n";
        let headers = ResponseHeaders::from_lines(lines);
        assert_eq!(headers.get(&CONTENT_TYPE), Some(&b"a/b"[..]));
        assert_eq!(headers.get(&HOST), Some(&b""[..]));
        assert_eq!(headers.get(&ACCEPT), None);
        assert_eq!(ResponseHeaders::default().get(&ACCEPT), None);
    }

    #[test]
    fn header_lines_without_one_name() {
        let mut lines = HeaderLines::default();
        lines.push(&ACCEPT, &HeaderValue::from_static("a"));
        lines.push(&USER_AGENT, &HeaderValue::from_static("us"));
        lines.push(&CONTENT_TYPE, &HeaderValue::from_static("b"));
        let want: &[u8] = b"accept: a\r\ncontent-type: b\r\n";
        assert_eq!(lines.without_header(&USER_AGENT).as_bytes(), want);
    }
}
