//! Run membership of a request, and the call limit of the run, as declared by the caller.

use bowline_wire::object;
use http::{HeaderMap, HeaderName};

/// `_meta` member with the run.
const RUN_META_KEY: &str = "dev.bowline/run";

/// Header with the run, for callers without access to `_meta`.
const RUN_HEADER: HeaderName = HeaderName::from_static("bowline-run");

/// Maximum length of a run id.
const ID_CHARS_MAX: usize = 128;

/// Error text for a malformed run. A run is a limit and is never ignored.
pub(super) const INVALID_RUN: &str = "a run is {\"id\":\"...\",\"calls\":N} in _meta, \
     or the header Bowline-Run: id=...; calls=N; its id is 1 to 128 visible characters";

/// A run as declared by a caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunClaim<'a> {
    pub(super) id: std::borrow::Cow<'a, str>,
    /// Maximum number of calls in the run.
    pub(super) calls: u64,
}

/// A malformed run declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidRun;

/// Reads the run of a call: `_meta` takes precedence over the header.
pub(super) fn read_run<'a>(
    headers: &'a HeaderMap,
    meta: Option<&'a [u8]>,
) -> Result<Option<RunClaim<'a>>, InvalidRun> {
    let in_meta = meta.and_then(|meta| object::field(meta, RUN_META_KEY).map(|at| at.slice(meta)));
    if let Some(run) = in_meta {
        return parse_meta(run).map(Some).ok_or(InvalidRun);
    }
    let mut lines = headers.get_all(RUN_HEADER).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let alone = lines.next().is_none();
    let text = line.to_str().ok().filter(|_| alone);
    text.and_then(parse_header).map(Some).ok_or(InvalidRun)
}

fn parse_meta(run: &[u8]) -> Option<RunClaim<'_>> {
    let calls = object::field(run, "calls")?.slice(run);
    let calls = std::str::from_utf8(calls).ok()?;
    parse_claim(object::text_field(run, "id")?, calls)
}

fn parse_header(text: &str) -> Option<RunClaim<'_>> {
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
    parse_claim(id?.into(), calls?)
}

fn parse_claim<'a>(id: std::borrow::Cow<'a, str>, calls: &str) -> Option<RunClaim<'a>> {
    let visible = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
    let plain = calls.bytes().all(|byte| byte.is_ascii_digit());
    if !visible || id.len() > ID_CHARS_MAX || !plain {
        return None;
    }
    let calls = calls.parse().ok()?;
    Some(RunClaim { id, calls })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read_claim(
        headers: &[&'static str],
        meta: Option<&str>,
    ) -> Result<Option<(String, u64)>, ()> {
        let mut map = HeaderMap::new();
        for value in headers {
            map.append(RUN_HEADER, HeaderValue::from_static(value));
        }
        let read = read_run(&map, meta.map(str::as_bytes));
        read.map(|run| run.map(|run| (run.id.into_owned(), run.calls)))
            .map_err(|InvalidRun| ())
    }

    #[test]
    fn meta_run_wins_over_header() {
        let meta = r#"{"dev.bowline/run":{"id":"a","calls":3}}"#;
        assert_eq!(read_claim(&[], None), Ok(None));
        assert_eq!(read_claim(&[], Some("{}")), Ok(None));
        assert_eq!(read_claim(&[], Some(meta)), Ok(Some(("a".to_owned(), 3))));
        let header = ["calls=5; id=b=c"];
        assert_eq!(read_claim(&header, None), Ok(Some(("b=c".to_owned(), 5))));
        assert_eq!(
            read_claim(&header, Some(meta)),
            Ok(Some(("a".to_owned(), 3)))
        );
    }

    #[test]
    fn unreadable_run_is_an_error() {
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
            assert_eq!(read_claim(&[], Some(meta)), Err(()), "{meta}");
            assert_eq!(
                read_claim(&["id=a; calls=1"], Some(meta)),
                Err(()),
                "{meta}"
            );
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
            assert_eq!(read_claim(&[header], None), Err(()), "{header}");
        }
        assert_eq!(
            read_claim(&["id=a; calls=1", "id=a; calls=1"], None),
            Err(())
        );
    }
}
