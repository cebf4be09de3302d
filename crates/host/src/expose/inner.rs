//! The call inside a `call_tool`.

use std::sync::Arc;

use bowline_core::call::{Call, Subject};
use bowline_wire::object;
use bowline_wire::splice::write_string;

use super::{arguments, arguments_in};

/// Returns the name of the tool that a `call_tool` with these parameters calls.
pub(crate) fn tool_in(params: &[u8]) -> Option<Arc<str>> {
    object::text(arguments_in(params), "name").map(Into::into)
}

/// Returns the call that a `call_tool` stands for: the same caller, id and `_meta`, another tool
/// and its arguments. Nothing where it names none.
pub(crate) fn inner(call: &Call) -> Option<Call> {
    let asked = arguments(call);
    let tool = object::text(asked, "name")?;
    let given = object::field(asked, "arguments").map(|at| at.of(asked));
    // Models write null where they mean nothing.
    let given = given.filter(|given| *given != b"null").unwrap_or(b"{}");
    if !given.starts_with(b"{") {
        return None;
    }
    let mut params = Vec::with_capacity(call.params.len());
    params.extend_from_slice(b"{\"name\":");
    let start = params.len();
    write_string(&mut params, &tool);
    let name_at = start..params.len();
    params.extend_from_slice(b",\"arguments\":");
    params.extend_from_slice(given);
    let mut progress_at = None;
    for (key, at) in object::fields(&call.params) {
        if matches!(key.as_ref(), "name" | "arguments") {
            continue;
        }
        params.push(b',');
        write_string(&mut params, &key);
        params.push(b':');
        let moved = params.len();
        if let Some(token) = &call.progress_at
            && (at.start..at.end).contains(&token.start)
        {
            let start = token.start - at.start + moved;
            progress_at = Some(start..start + token.len());
        }
        params.extend_from_slice(at.of(&call.params));
    }
    params.push(b'}');
    let mut stateless = call.stateless.clone();
    if let Some(stateless) = &mut stateless {
        // Headers repeat arguments of the tool that was listed, and that was another one.
        stateless.claims = None;
    }
    Some(Call {
        subject: Subject::Tool(tool.as_ref().into()),
        params: params.into(),
        name_at,
        progress_at,
        stateless,
        ..call.clone()
    })
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{Principal, Role, Scope};
    use bytes::Bytes;

    use super::*;

    fn call(params: &'static str) -> Call {
        let token = params.find("\"T\"");
        Call {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: Scope::All,
            subject: Subject::Tool("call_tool".into()),
            params: Bytes::from_static(params.as_bytes()),
            name_at: 0..0,
            makes_task: false,
            progress_at: token.map(|at| at..at + 3),
            id: Bytes::from_static(b"1"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
            key: None,
            stateless: None,
        }
    }

    #[test]
    fn the_inner_call_keeps_every_byte_of_its_arguments_and_where_its_token_stands() {
        let asked = call(
            r#"{"_meta":{"a":1,"progressToken":"T"},"name":"call_tool","arguments":{"name":"s__\u0061","arguments":{"n": 1.50}},"task":{}}"#,
        );
        let inner = inner(&asked).unwrap();
        assert_eq!(inner.subject, Subject::Tool("s__a".into()));
        assert_eq!(
            inner.params,
            r#"{"name":"s__a","arguments":{"n": 1.50},"_meta":{"a":1,"progressToken":"T"},"task":{}}"#
        );
        assert_eq!(&inner.params[inner.name_at], b"\"s__a\"");
        assert_eq!(&inner.params[inner.progress_at.unwrap()], b"\"T\"");
    }

    #[test]
    fn a_call_of_nothing_is_none() {
        for params in [
            r#"{"name":"call_tool"}"#,
            r#"{"name":"call_tool","arguments":{}}"#,
            r#"{"name":"call_tool","arguments":{"name":1}}"#,
            r#"{"name":"call_tool","arguments":{"name":"a","arguments":[1]}}"#,
            r#"{"name":"call_tool","arguments":{"name":"a","arguments":"{}"}}"#,
        ] {
            assert!(inner(&call(params)).is_none(), "{params}");
        }
        let none = inner(&call(r#"{"arguments":{"name":"a","arguments":null}}"#)).unwrap();
        assert_eq!(none.params, r#"{"name":"a","arguments":{}}"#);
    }
}
