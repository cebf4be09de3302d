//! Binds the idempotency key of a call to its principal: servers see a single credential for all
//! principals, so equal keys of different principals must differ upstream.

use bowline_core::call::{CallRequest, Route};
use bowline_core::lane::{KEY_META, KeyChannel, KeyScope};
use bowline_wire::splice::to_literal;
use bowline_wire::{ByteSpan, ObjectEditor, object};

use crate::outbox::{argument_at, given_key};

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
    let key = given_key(&call.params, call, channel.unwrap_or(&KeyChannel::None))?;
    let key = keys.scope_key(&call.principal.name, &key);
    let literal = to_literal(&key);
    let mut editor = ObjectEditor::new(&call.params);
    let argument = member.and_then(|member| argument_at(&call.params, member));
    for at in argument.into_iter().chain(meta_key_span(&call.params)) {
        editor.replace(at, &literal);
    }
    let name_at = editor.moved_range(&call.name_at);
    let progress_at = call.progress_at.as_ref();
    let progress_at = progress_at.map(|at| editor.moved_range(at));
    Some(Box::new(CallRequest {
        name_at,
        progress_at,
        params: editor.finish().into(),
        idempotency_key: Some(key),
        ..call.clone()
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
    use std::sync::Arc;
    use std::time::Duration;

    use bowline_core::call::{CallSubject, EndpointScope, Principal, Role};
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
            params: Bytes::copy_from_slice(params.as_bytes()),
            name_at: at.start..at.end,
            wants_task: false,
            progress_at: token.map(|at| at..at + 3),
            id: Bytes::from_static(b"1"),
            deadline: None,
            client: None,
            trace: None,
            run: None,
            idempotency_key: key.map(Into::into),
            stateless: None,
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
            let text = String::from_utf8(sent.params.to_vec()).unwrap();
            assert_eq!(text, meta.replacen("\"k\"", &format!("\"{scoped}\""), 1));
            assert_eq!(&sent.params[sent.name_at], b"\"do\"");
            assert_eq!(&sent.params[sent.progress_at.unwrap()], b"\"T\"");
            assert_eq!(sent.idempotency_key.as_deref(), Some(&*scoped));
        }
        // The argument is the key; a different key in `_meta` is not forwarded.
        let sent = scope_key(
            &keys,
            &tool_call("ann", meta, Some("other")),
            &queued_route(KeyChannel::Argument("id".into())),
        );
        let text = String::from_utf8(sent.unwrap().params.to_vec()).unwrap();
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
