//! What a request says of the trace that it is part of.

use bowline_core::trace::{self, Trace};
use bowline_wire::object;
use http::{HeaderMap, HeaderName};

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

const TRACESTATE: HeaderName = HeaderName::from_static(trace::TRACESTATE);

/// Reads where a call stands: its own `_meta` is nearer to it than the headers, which may be of
/// whatever carried it here. What is not valid is ignored.
pub(super) fn read(headers: &HeaderMap, meta: Option<&[u8]>) -> Option<Trace> {
    meta.and_then(in_params).or_else(|| in_headers(headers))
}

fn in_params(meta: &[u8]) -> Option<Trace> {
    let parent = object::text(meta, trace::TRACEPARENT)?;
    let state = object::text(meta, trace::TRACESTATE);
    let read = Trace::read(&parent, state.as_deref())?;
    Some(Trace {
        in_params: true,
        ..read
    })
}

fn in_headers(headers: &HeaderMap) -> Option<Trace> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    // Several lines are one list.
    let states = headers.get_all(TRACESTATE).iter();
    let states: Vec<_> = states.filter_map(|line| line.to_str().ok()).collect();
    Trace::read(parent, Some(&states.join(",")))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ONE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const TWO: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn said(headers: &[(&'static str, &'static str)], meta: Option<&str>) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let read = read(&map, meta.map(str::as_bytes));
        read.map_or_else(String::new, |trace| {
            let state = trace.state.unwrap_or_default();
            format!("{} {state} {}", trace.context, trace.in_params)
        })
    }

    #[test]
    fn headers_say_where_a_call_stands() {
        assert_eq!(said(&[], None), "");
        assert_eq!(said(&[("traceparent", ONE)], None), format!("{ONE}  false"));
        let noted = [
            ("traceparent", ONE),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ];
        assert_eq!(said(&noted, None), format!("{ONE} a=1,b=2 false"));
    }

    #[test]
    fn the_call_itself_is_believed_before_its_headers() {
        let header = [("traceparent", ONE), ("tracestate", "h=1")];
        let meta = format!(r#"{{"traceparent":"{TWO}","tracestate":"m=1"}}"#);
        assert_eq!(said(&header, Some(&meta)), format!("{TWO} m=1 true"));
        for not_valid in ["{}", r#"{"traceparent":"x"}"#, r#"{"traceparent":1}"#] {
            let want = format!("{ONE} h=1 false");
            assert_eq!(said(&header, Some(not_valid)), want, "{not_valid}");
        }
    }

    #[test]
    fn a_context_that_is_not_valid_or_not_alone_is_ignored() {
        assert_eq!(said(&[("traceparent", "no")], None), "");
        let two = [("traceparent", ONE), ("traceparent", TWO)];
        assert_eq!(said(&two, None), "");
    }
}
