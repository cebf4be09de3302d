//! Arguments that a call repeats: in `Mcp-Param-*` headers, and as its idempotency key.
//!
//! The headers must match the arguments, and no argument may differ only in case. The key is bound
//! to its principal: servers see a single credential for all principals, so equal keys of different
//! principals must differ upstream.

use std::sync::Arc;

use bowline_core::call::{CallRequest, CallSubject, Route};
use bowline_core::error::CallError;
use bowline_core::lane::{KEY_META, KeyChannel, KeyScope};
use bowline_link::IdempotencyHeader;
use bowline_wire::era::header_params;
use bowline_wire::splice::to_literal;
use bowline_wire::{ByteSpan, ObjectEditor, case_fold, object};

use crate::outbox::{argument_at, given_key};

/// Refuses a call with headers that contradict its arguments, and a call with an argument that
/// differs only in case from a header parameter or from the idempotency key's argument. Calls
/// without such headers claim nothing.
pub(super) fn check_headers(call: &CallRequest, route: &Route) -> Result<(), CallError> {
    let key_argument = match route.queue_policy.as_ref().map(|queue| &queue.key_channel) {
        Some(KeyChannel::Argument(member)) if matches!(call.subject, CallSubject::Tool(_)) => {
            Some(member)
        }
        _ => None,
    };
    let mirrors = route.header_params.as_deref();
    if mirrors.is_none() && key_argument.is_none() {
        return Ok(());
    }
    let arguments = object::field(&call.message.params, "arguments");
    let arguments = arguments.map_or(&b"{}"[..], |at| at.slice(&call.message.params));
    if key_argument.is_some_and(|member| case_fold::has_variant(arguments, member))
        || mirrors.is_some_and(|mirrors| !header_params::is_unambiguous(mirrors, arguments))
    {
        return Err(CallError::AmbiguousNames {
            server: Arc::clone(&route.server),
            tool: Arc::clone(&route.name),
        });
    }
    let claims = match &call.stateless {
        None => return Ok(()),
        Some(stateless) => stateless.header_claims.as_deref(),
    };
    let (Some(claims), Some(mirrors)) = (claims, mirrors) else {
        return Ok(());
    };
    if header_params::headers_match(claims, mirrors, arguments) {
        return Ok(());
    }
    Err(CallError::HeaderMismatch {
        server: Arc::clone(&route.server),
        tool: Arc::clone(&route.name),
    })
}

/// Returns a copy of the call with the scoped key in every place the key occurs; `None` without a
/// key. All other bytes stay unchanged.
pub(super) fn scope_key(
    keys: &KeyScope,
    call: &CallRequest,
    route: &Route,
) -> Option<Box<CallRequest>> {
    let channel = route.queue_policy.as_ref().map(|queue| &queue.key_channel);
    let member = match channel {
        Some(KeyChannel::Argument(member)) => Some(member),
        Some(KeyChannel::Header(_) | KeyChannel::Meta | KeyChannel::None) | None => None,
    };
    // Without either, the call holds nothing a server could take for a key.
    if call.idempotency_key.is_none() && member.is_none() {
        return None;
    }
    let key = given_key(
        &call.message.params,
        call,
        channel.unwrap_or(&KeyChannel::None),
    )?;
    let key = keys.scope_key(&call.principal.name, &key);
    let literal = to_literal(&key);
    let mut editor = ObjectEditor::new(&call.message.params);
    let argument = member.and_then(|member| argument_at(&call.message.params, member));
    for at in argument
        .into_iter()
        .chain(meta_key_span(&call.message.params))
    {
        editor.replace(at, &literal);
    }
    let name_at = editor.moved_range(&call.name_at);
    let progress_at = call.message.progress_at.as_ref();
    let progress_at = progress_at.map(|at| editor.moved_range(at));
    let mut scoped = Box::new(call.clone());
    scoped.name_at = name_at;
    scoped.message.progress_at = progress_at;
    scoped.message.params = editor.finish().into();
    scoped.idempotency_key = Some(key);
    Some(scoped)
}

/// Returns the header with the idempotency key, if the server expects a header.
pub(super) fn key_header(call: &CallRequest, route: &Route) -> Option<Box<IdempotencyHeader>> {
    let KeyChannel::Header(name) = &route.queue_policy.as_ref()?.key_channel else {
        return None;
    };
    let key = call.idempotency_key.as_ref()?;
    Some(Box::new(IdempotencyHeader {
        name: Arc::clone(name),
        value: Arc::clone(key),
    }))
}

/// Returns the position of a key in `_meta`.
fn meta_key_span(params: &[u8]) -> Option<ByteSpan> {
    let meta = object::field(params, "_meta")?;
    let at = object::field(meta.slice(params), KEY_META)?;
    Some(at.shift(meta.start))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_core::call::{CallSubject, EndpointScope, Principal, RequestMessage, Role};
    use bowline_core::era::Era;
    use bowline_core::lane::QueuePolicy;
    use bytes::Bytes;

    use super::*;

    fn tool_call(who: &str, params: &str, key: Option<&str>) -> CallRequest {
        let token = params.find("\"T\"");
        let at = object::field(params.as_bytes(), "name").unwrap();
        CallRequest {
            principal: Arc::new(Principal::new(who, Role::Owner)),
            scope: EndpointScope::All,
            subject: CallSubject::Tool("do".into()),
            name_at: at.start..at.end,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: key.map(Into::into),
            stateless: None,
            message: RequestMessage {
                params: Bytes::copy_from_slice(params.as_bytes()),
                progress_at: token.map(|at| at..at + 3),
                id: Bytes::from_static(b"1"),
                client: None,
                trace: None,
                era: Era::Legacy,
            },
        }
    }

    fn queued_route(channel: KeyChannel) -> Route {
        let route = Route::new_unlisted(&"s".into(), &"do".into());
        let keep = Duration::from_secs(1);
        Route {
            queue_policy: Some(Arc::new(QueuePolicy {
                max_age: keep,
                key_channel: channel,
            })),
            ..Route::clone(&route)
        }
    }

    #[test]
    fn key_is_scoped_in_every_channel() {
        let keys = KeyScope::default();
        let scoped = keys.scope_key("ann", "k");
        let meta = r#"{"_meta":{"dev.bowline\/idempotencyKey":"k","progressToken":"T"},"name":"do","arguments":{"id":"k"}}"#;
        let unqueued = Route::new_unlisted(&"s".into(), &"do".into());
        let header = KeyChannel::Header("Idempotency-Key".into());
        for route in [
            &*unqueued,
            &queued_route(KeyChannel::Meta),
            &queued_route(header),
        ] {
            let sent = scope_key(&keys, &tool_call("ann", meta, Some("k")), route).unwrap();
            let text = String::from_utf8(sent.message.params.to_vec()).unwrap();
            assert_eq!(text, meta.replacen("\"k\"", &format!("\"{scoped}\""), 1));
            assert_eq!(&sent.message.params[sent.name_at], b"\"do\"");
            assert_eq!(
                &sent.message.params[sent.message.progress_at.unwrap()],
                b"\"T\""
            );
            assert_eq!(sent.idempotency_key.as_deref(), Some(&*scoped));
        }
        // The argument is the key; a different key in `_meta` is not forwarded.
        let sent = scope_key(
            &keys,
            &tool_call("ann", meta, Some("other")),
            &queued_route(KeyChannel::Argument("id".into())),
        );
        let text = String::from_utf8(sent.unwrap().message.params.to_vec()).unwrap();
        assert_eq!(text, meta.replace("\"k\"", &format!("\"{scoped}\"")));
    }

    #[test]
    fn call_without_key_is_not_copied() {
        let plain = tool_call("ann", r#"{"name":"do","arguments":{"n":1}}"#, None);
        let keys = KeyScope::default();
        for channel in [
            KeyChannel::None,
            KeyChannel::Meta,
            KeyChannel::Argument("id".into()),
        ] {
            assert!(scope_key(&keys, &plain, &queued_route(channel)).is_none());
        }
    }
}
