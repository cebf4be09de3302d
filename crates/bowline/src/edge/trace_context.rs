//! W3C trace context of a request.

use bowline_core::trace::{self, CallTrace};
use bowline_wire::object;
use http::{HeaderMap, HeaderName};

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

const TRACESTATE: HeaderName = HeaderName::from_static(trace::TRACESTATE);

/// Reads the trace of a call: `_meta` takes precedence over headers, which may belong to the
/// transport. Invalid values are ignored.
pub(super) fn read_trace(headers: &HeaderMap, meta: Option<&[u8]>) -> Option<CallTrace> {
    meta.and_then(trace_in_meta)
        .or_else(|| trace_in_headers(headers))
}

fn trace_in_meta(meta: &[u8]) -> Option<CallTrace> {
    let parent = object::text_field(meta, trace::TRACEPARENT)?;
    let state = object::text_field(meta, trace::TRACESTATE);
    let read = CallTrace::parse(&parent, state.as_deref())?;
    Some(CallTrace {
        in_params: true,
        ..read
    })
}

fn trace_in_headers(headers: &HeaderMap) -> Option<CallTrace> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    // Several header lines form a single list.
    let states = headers.get_all(TRACESTATE).iter();
    let states: Vec<_> = states.filter_map(|line| line.to_str().ok()).collect();
    CallTrace::parse(parent, Some(&states.join(",")))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const ONE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const TWO: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn trace_text(headers: &[(&'static str, &'static str)], meta: Option<&str>) -> String {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let read = read_trace(&map, meta.map(str::as_bytes));
        read.map_or_else(String::new, |trace| {
            let state = trace.trace_state.unwrap_or_default();
            format!("{} {state} {}", trace.context, trace.in_params)
        })
    }

    #[test]
    fn trace_is_read_from_headers() {
        assert_eq!(trace_text(&[], None), "");
        assert_eq!(
            trace_text(&[("traceparent", ONE)], None),
            format!("{ONE}  false")
        );
        let noted = [
            ("traceparent", ONE),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ];
        assert_eq!(trace_text(&noted, None), format!("{ONE} a=1,b=2 false"));
    }

    #[test]
    fn meta_trace_wins_over_headers() {
        let header = [("traceparent", ONE), ("tracestate", "h=1")];
        let meta = format!(r#"{{"traceparent":"{TWO}","tracestate":"m=1"}}"#);
        assert_eq!(trace_text(&header, Some(&meta)), format!("{TWO} m=1 true"));
        for not_valid in ["{}", r#"{"traceparent":"x"}"#, r#"{"traceparent":1}"#] {
            let want = format!("{ONE} h=1 false");
            assert_eq!(trace_text(&header, Some(not_valid)), want, "{not_valid}");
        }
    }

    #[test]
    fn invalid_or_repeated_traceparent_is_ignored() {
        assert_eq!(trace_text(&[("traceparent", "no")], None), "");
        let two = [("traceparent", ONE), ("traceparent", TWO)];
        assert_eq!(trace_text(&two, None), "");
    }
}
