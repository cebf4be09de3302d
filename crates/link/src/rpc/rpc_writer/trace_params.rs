//! Writes the trace context into call parameters.

use bowline_core::trace::{CallTrace, TRACEPARENT, TRACESTATE};
use bowline_wire::splice::to_literal;
use bowline_wire::{MemberList, ObjectEditor, object};

/// Where a link transmits the trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TracePlacement {
    /// In `params._meta`, for transports without headers.
    Params,
    /// In a header; existing members of `params._meta` are only updated.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only of HTTP"))]
    Header,
}

/// Puts the trace context into `params._meta`.
pub(super) fn add_trace(
    editor: &mut ObjectEditor<'_>,
    trace: &CallTrace,
    placement: TracePlacement,
) {
    if trace.in_params {
        return;
    }
    let params = editor.text();
    let Some(meta) = object::field(params, "_meta") else {
        if placement == TracePlacement::Params {
            let context = context_members(trace).into_object();
            editor.insert_first(editor.whole(), MemberList::from_member("_meta", &context));
        }
        return;
    };
    let has = |key| object::field(meta.slice(params), key).is_some();
    let has_state = has(TRACESTATE);
    if !has(TRACEPARENT) && !has_state {
        if placement == TracePlacement::Params {
            editor.insert_first(meta, context_members(trace));
        }
        return;
    }
    // State of a different context must not remain.
    let state = trace.trace_state.as_deref().unwrap_or_default();
    if has_state || !state.is_empty() {
        editor.set_first(meta, &[TRACESTATE], to_literal(state));
    }
    let context = to_literal(&trace.context.to_string());
    editor.set_first(meta, &[TRACEPARENT], context);
}

fn context_members(trace: &CallTrace) -> MemberList {
    let mut members = MemberList::default();
    members.push_text(TRACEPARENT, &trace.context.to_string());
    if let Some(state) = &trace.trace_state {
        members.push_text(TRACESTATE, state);
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn apply_trace(params: &str, trace: &CallTrace, place: TracePlacement) -> String {
        let mut editor = ObjectEditor::new(params.as_bytes());
        add_trace(&mut editor, trace, place);
        String::from_utf8(editor.finish()).unwrap()
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
        assert_eq!(apply_trace("{}", &trace, TracePlacement::Params), "{}");
    }
}
