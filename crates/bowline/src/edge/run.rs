//! Which run a request belongs to, and how many calls that run may make, as its caller says.

use bowline_wire::object;
use http::{HeaderMap, HeaderName};

/// The member of `_meta` that names a run.
const META: &str = "dev.bowline/run";

/// The header that does, for callers that cannot reach `_meta`.
const HEADER: HeaderName = HeaderName::from_static("bowline-run");

/// Characters of a run's id.
const ID_CHARS_MAX: usize = 128;

/// What is wrong with a run that cannot be read. It is a limit, so it is never ignored.
pub(super) const MALFORMED: &str = "a run is {\"id\":\"...\",\"calls\":N} in _meta, or the header \
     Bowline-Run: id=...; calls=N; its id is 1 to 128 visible characters";

/// A run as a caller names it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) id: std::borrow::Cow<'a, str>,
    /// How many calls it may make.
    pub(super) calls: u64,
}

/// Says that a run is named in a way that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Reads which run a call belongs to: its own `_meta` is nearer to it than the headers.
pub(super) fn read<'a>(
    headers: &'a HeaderMap,
    meta: Option<&'a [u8]>,
) -> Result<Option<Named<'a>>, Malformed> {
    let in_meta = meta.and_then(|meta| object::field(meta, META).map(|at| at.of(meta)));
    if let Some(run) = in_meta {
        return of_meta(run).map(Some).ok_or(Malformed);
    }
    let mut lines = headers.get_all(HEADER).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let alone = lines.next().is_none();
    let text = line.to_str().ok().filter(|_| alone);
    text.and_then(of_header).map(Some).ok_or(Malformed)
}

fn of_meta(run: &[u8]) -> Option<Named<'_>> {
    let calls = object::field(run, "calls")?.of(run);
    let calls = std::str::from_utf8(calls).ok()?;
    named(object::text(run, "id")?, calls)
}

fn of_header(text: &str) -> Option<Named<'_>> {
    let (mut id, mut calls) = (None, None);
    for part in text.split(';') {
        let (key, value) = part.trim().split_once('=')?;
        let slot = match key {
            "id" => &mut id,
            "calls" => &mut calls,
            _ => return None,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    named(id?.into(), calls?)
}

fn named<'a>(id: std::borrow::Cow<'a, str>, calls: &str) -> Option<Named<'a>> {
    let visible = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
    let plain = calls.bytes().all(|byte| byte.is_ascii_digit());
    if !visible || id.len() > ID_CHARS_MAX || !plain {
        return None;
    }
    let calls = calls.parse().ok()?;
    Some(Named { id, calls })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn said(headers: &[&'static str], meta: Option<&str>) -> Result<Option<(String, u64)>, ()> {
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(HEADER, HeaderValue::from_static(value));
        }
        let read = read(&map, meta.map(str::as_bytes));
        read.map(|run| run.map(|run| (run.id.into_owned(), run.calls)))
            .map_err(|Malformed| ())
    }

    #[test]
    fn a_run_is_read_from_its_call_before_the_headers() {
        let meta = r#"{"dev.bowline/run":{"id":"a","calls":3}}"#;
        assert_eq!(said(&[], None), Ok(None));
        assert_eq!(said(&[], Some("{}")), Ok(None));
        assert_eq!(said(&[], Some(meta)), Ok(Some(("a".to_owned(), 3))));
        let header = ["calls=5; id=b=c"];
        assert_eq!(said(&header, None), Ok(Some(("b=c".to_owned(), 5))));
        assert_eq!(said(&header, Some(meta)), Ok(Some(("a".to_owned(), 3))));
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_not_ignored() {
        for meta in [
            r#"{"dev.bowline/run":3}"#,
            r#"{"dev.bowline/run":{}}"#,
            r#"{"dev.bowline/run":{"id":"a"}}"#,
            r#"{"dev.bowline/run":{"id":"","calls":1}}"#,
            r#"{"dev.bowline/run":{"id":"a b","calls":1}}"#,
            r#"{"dev.bowline/run":{"id":"a","calls":-1}}"#,
            r#"{"dev.bowline/run":{"id":"a","calls":1.5}}"#,
            r#"{"dev.bowline/run":{"id":"a","calls":"1"}}"#,
            r#"{"dev.bowline/run":{"id":7,"calls":1}}"#,
        ] {
            assert_eq!(said(&[], Some(meta)), Err(()), "{meta}");
            assert_eq!(said(&["id=a; calls=1"], Some(meta)), Err(()), "{meta}");
        }
        for header in [
            "",
            "a",
            "id=a",
            "calls=1",
            "id=a; calls=x",
            "id=a; calls=1; calls=2",
            "id=a; calls=1; more=1",
            "id=a; calls=99999999999999999999",
        ] {
            assert_eq!(said(&[header], None), Err(()), "{header}");
        }
        assert_eq!(said(&["id=a; calls=1", "id=a; calls=1"], None), Err(()));
    }
}
