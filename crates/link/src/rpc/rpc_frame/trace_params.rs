//! Writes the trace context into call parameters.

use bowline_core::trace::{CallTrace, TRACEPARENT, TRACESTATE};
use bowline_wire::splice::write_string;
use bowline_wire::{ByteSpan, object};

/// Where a link transmits the trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TracePlacement {
    /// In `params._meta`, for transports without headers.
    Params,
    /// In a header; existing members of `params._meta` are only updated.
    Header,
}

/// An owned edit of the parameters.
pub(super) type ParamChange = (ByteSpan, Vec<u8>);

/// Returns the edits that put the trace context into `params._meta`.
pub(super) fn trace_changes(
    params: &[u8],
    trace: &CallTrace,
    placement: TracePlacement,
) -> Vec<ParamChange> {
    if trace.in_params {
        return Vec::new();
    }
    let Some(meta) = object::field(params, "_meta") else {
        return match placement {
            TracePlacement::Params => {
                insert_members(params, ByteSpan { start: 0, end: 0 }, |out| {
                    out.extend_from_slice(b"\"_meta\":{");
                    write_members(out, trace);
                    out.push(b'}');
                })
            }
            TracePlacement::Header => Vec::new(),
        };
    };
    let find_member = |key| object::field(meta.slice(params), key).map(|at| at.shift(meta.start));
    let (parent, state) = (find_member(TRACEPARENT), find_member(TRACESTATE));
    match (parent, state) {
        (None, None) if placement == TracePlacement::Header => Vec::new(),
        (None, None) => insert_members(params, meta, |out| write_members(out, trace)),
        (parent, state) => {
            let context = trace.context.to_string();
            let mut changes = Vec::new();
            changes.extend(parent.map(|at| (at, json_string(&context))));
            // State of a different context must not remain.
            let trace_state = trace.trace_state.as_deref().unwrap_or_default();
            changes.extend(state.map(|at| (at, json_string(trace_state))));
            // Insert the missing member first.
            if parent.is_none() {
                changes.extend(insert_members(params, meta, |out| {
                    write_member(out, TRACEPARENT, &context);
                }));
            } else if state.is_none() && !trace_state.is_empty() {
                changes.extend(insert_members(params, meta, |out| {
                    write_member(out, TRACESTATE, trace_state);
                }));
            }
            changes
        }
    }
}

/// Returns the edit that inserts members at the start of the object at `at`; none for a non-object.
fn insert_members(
    params: &[u8],
    at: ByteSpan,
    write: impl FnOnce(&mut Vec<u8>),
) -> Vec<ParamChange> {
    let object = params.get(at.start..).unwrap_or_default();
    let space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let before = object.iter().take_while(space).count();
    let Some((b'{', rest)) = object.get(before..).and_then(<[u8]>::split_first) else {
        return Vec::new();
    };
    let mut text = Vec::new();
    write(&mut text);
    if rest.iter().find(|byte| !space(byte)) != Some(&b'}') {
        text.push(b',');
    }
    let offset = at.start + before + 1;
    let at = ByteSpan {
        start: offset,
        end: offset,
    };
    vec![(at, text)]
}

fn write_members(out: &mut Vec<u8>, trace: &CallTrace) {
    write_member(out, TRACEPARENT, &trace.context.to_string());
    if let Some(state) = &trace.trace_state {
        out.push(b',');
        write_member(out, TRACESTATE, state);
    }
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &str) {
    write_string(out, key);
    out.push(b':');
    write_string(out, value);
}

fn json_string(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_string(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use bowline_wire::splice::{ByteEdit, EditedText};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn apply_trace(params: &str, trace: &CallTrace, place: TracePlacement) -> String {
        let mut changes = trace_changes(params.as_bytes(), trace, place);
        changes.sort_by_key(|(at, _)| at.start);
        let edits: Vec<_> = changes
            .iter()
            .map(|(at, with)| ByteEdit { at: *at, with })
            .collect();
        let source = params.as_bytes();
        let edited = EditedText {
            source,
            edits: &edits,
        };
        String::from_utf8(edited.to_vec()).unwrap()
    }

    /// Asserts both placements; `P` in the expected text stands for our context.
    fn assert_trace_written(state: Option<&str>, params: &str, in_params: &str, in_header: &str) {
        let trace = CallTrace::parse(PARENT, state).unwrap();
        let wanted = |text: &str| text.replace('P', PARENT);
        assert_eq!(
            apply_trace(params, &trace, TracePlacement::Params),
            wanted(in_params)
        );
        assert_eq!(
            apply_trace(params, &trace, TracePlacement::Header),
            wanted(in_header)
        );
    }

    #[test]
    fn trace_is_written_only_without_header() {
        let add = r#""traceparent":"P""#;
        for (params, want) in [
            ("{}", format!(r#"{{"_meta":{{{add}}}}}"#)),
            (" { } ", format!(r#" {{"_meta":{{{add}}} }} "#)),
            (
                r#"{ "name":"x"}"#,
                format!(r#"{{"_meta":{{{add}}}, "name":"x"}}"#),
            ),
            (
                r#"{"name":"x","_meta":{"progressToken": 7 }}"#,
                format!(r#"{{"name":"x","_meta":{{{add},"progressToken": 7 }}}}"#),
            ),
            (r#"{"_meta": {  }}"#, format!(r#"{{"_meta": {{{add}  }}}}"#)),
            // Not repaired.
            (r#"{"_meta":null}"#, r#"{"_meta":null}"#.to_owned()),
        ] {
            assert_trace_written(None, params, &want, params);
        }
        let with_state = r#"{"_meta":{"traceparent":"P","tracestate":"a=1"}}"#;
        assert_trace_written(Some("a=1"), "{}", with_state, "{}");
    }

    #[test]
    fn existing_trace_members_are_replaced() {
        let params = r#"{"_meta":{ "tracestate":"old=1" , "x":[1],"traceparent" : "old"},"n":1.0}"#;
        let want = params.replace(r#""old""#, r#""P""#);
        let new = want.replace("old=1", "new=2");
        assert_trace_written(Some("new=2"), params, &new, &new);
        let none = want.replace("old=1", "");
        assert_trace_written(None, params, &none, &none);
        let alone = r#"{"_meta":{"traceparent":"old"}}"#;
        let added = r#"{"_meta":{"tracestate":"a=1","traceparent":"P"}}"#;
        assert_trace_written(Some("a=1"), alone, added, added);
        let stray = r#"{"_meta":{"tracestate":"old=1"}}"#;
        let both = r#"{"_meta":{"traceparent":"P","tracestate":""}}"#;
        assert_trace_written(None, stray, both, both);
    }

    #[test]
    fn params_with_current_trace_stay_unchanged() {
        let trace = CallTrace {
            in_params: true,
            ..CallTrace::parse(PARENT, None).unwrap()
        };
        assert_eq!(trace_changes(b"{}", &trace, TracePlacement::Params), []);
    }
}
