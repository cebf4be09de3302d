//! Writes into the parameters of a call where it stands in a trace.

use bowline_core::trace::{TRACEPARENT, TRACESTATE, Trace};
use bowline_wire::splice::write_string;
use bowline_wire::{Span, object};

/// Where a link says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the parameters, which is the only place there is.
    Params,
    /// In a header; what the parameters say already is only kept from saying something else.
    Header,
}

/// A change of the parameters that owns its text.
pub(super) type Change = (Span, Vec<u8>);

/// Returns what must change in `params` so that their `_meta` says where the call stands.
pub(super) fn changes(params: &[u8], trace: &Trace, place: Place) -> Vec<Change> {
    if trace.in_params {
        return Vec::new();
    }
    let Some(meta) = object::field(params, "_meta") else {
        return match place {
            Place::Params => inserted(params, Span { start: 0, end: 0 }, |out| {
                out.extend_from_slice(b"\"_meta\":{");
                write_members(out, trace);
                out.push(b'}');
            }),
            Place::Header => Vec::new(),
        };
    };
    let said = |key| object::field(meta.of(params), key).map(|at| at.shift(meta.start));
    let (parent, state) = (said(TRACEPARENT), said(TRACESTATE));
    match (parent, state) {
        (None, None) if place == Place::Header => Vec::new(),
        (None, None) => inserted(params, meta, |out| write_members(out, trace)),
        (parent, state) => {
            let context = trace.context.to_string();
            let mut changes = Vec::new();
            changes.extend(parent.map(|at| (at, literal(&context))));
            // Notes on another context must not stand beside this one.
            let notes = trace.state.as_deref().unwrap_or_default();
            changes.extend(state.map(|at| (at, literal(notes))));
            // Whichever is missing is put in front of the others.
            if parent.is_none() {
                changes.extend(inserted(params, meta, |out| {
                    write_member(out, TRACEPARENT, &context);
                }));
            } else if state.is_none() && !notes.is_empty() {
                changes.extend(inserted(params, meta, |out| {
                    write_member(out, TRACESTATE, notes);
                }));
            }
            changes
        }
    }
}

/// Returns the change that puts members in front of those of the object at `at`; none where that
/// is no object.
fn inserted(params: &[u8], at: Span, write: impl FnOnce(&mut Vec<u8>)) -> Vec<Change> {
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
    let place = at.start + before + 1;
    let at = Span {
        start: place,
        end: place,
    };
    vec![(at, text)]
}

fn write_members(out: &mut Vec<u8>, trace: &Trace) {
    write_member(out, TRACEPARENT, &trace.context.to_string());
    if let Some(state) = &trace.state {
        out.push(b',');
        write_member(out, TRACESTATE, state);
    }
}

fn write_member(out: &mut Vec<u8>, key: &str, value: &str) {
    write_string(out, key);
    out.push(b':');
    write_string(out, value);
}

fn literal(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_string(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use bowline_wire::splice::{Edit, Edited};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn changed(params: &str, trace: &Trace, place: Place) -> String {
        let mut changes = changes(params.as_bytes(), trace, place);
        changes.sort_by_key(|(at, _)| at.start);
        let edits: Vec<_> = changes
            .iter()
            .map(|(at, with)| Edit { at: *at, with })
            .collect();
        let source = params.as_bytes();
        let edited = Edited {
            source,
            edits: &edits,
        };
        String::from_utf8(edited.to_vec()).unwrap()
    }

    /// Writes `P` for our context in what is wanted.
    fn check(state: Option<&str>, params: &str, in_params: &str, in_header: &str) {
        let trace = Trace::read(PARENT, state).unwrap();
        let wanted = |text: &str| text.replace('P', PARENT);
        assert_eq!(changed(params, &trace, Place::Params), wanted(in_params));
        assert_eq!(changed(params, &trace, Place::Header), wanted(in_header));
    }

    #[test]
    fn parameters_that_say_nothing_are_told_on_a_pipe_and_left_alone_beside_a_header() {
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
            // Not ours to mend.
            (r#"{"_meta":null}"#, r#"{"_meta":null}"#.to_owned()),
        ] {
            check(None, params, &want, params);
        }
        let with_state = r#"{"_meta":{"traceparent":"P","tracestate":"a=1"}}"#;
        check(Some("a=1"), "{}", with_state, "{}");
    }

    #[test]
    fn what_parameters_say_is_brought_up_to_date_and_nothing_else_is_touched() {
        let params = r#"{"_meta":{ "tracestate":"old=1" , "x":[1],"traceparent" : "old"},"n":1.0}"#;
        let want = params.replace(r#""old""#, r#""P""#);
        let new = want.replace("old=1", "new=2");
        check(Some("new=2"), params, &new, &new);
        let none = want.replace("old=1", "");
        check(None, params, &none, &none);
        let alone = r#"{"_meta":{"traceparent":"old"}}"#;
        let added = r#"{"_meta":{"tracestate":"a=1","traceparent":"P"}}"#;
        check(Some("a=1"), alone, added, added);
        let stray = r#"{"_meta":{"tracestate":"old=1"}}"#;
        let both = r#"{"_meta":{"traceparent":"P","tracestate":""}}"#;
        check(None, stray, both, both);
    }

    #[test]
    fn parameters_that_say_it_already_are_not_touched() {
        let trace = Trace {
            in_params: true,
            ..Trace::read(PARENT, None).unwrap()
        };
        assert_eq!(changes(b"{}", &trace, Place::Params), []);
    }
}
