//! Binds the idempotency key of a call to its principal, on the way to the server: servers that
//! know repeated calls by their keys see one credential for all principals.

use std::ops::Range;

use bowline_core::call::{Call, Route};
use bowline_core::lane::{Channel, KEY_META, KeyScope};
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{replace, write_string};

use crate::outbox::{argument_at, given_key};

/// Returns the call under the key that its server is to see, wherever the key travels; nothing
/// where it has none. Everything else keeps its bytes.
pub(super) fn scope_key(keys: &KeyScope, call: &Call, route: &Route) -> Option<Box<Call>> {
    let channel = route.queue.as_ref().map(|queue| &queue.channel);
    let member = match channel {
        Some(Channel::Argument(member)) => Some(member),
        Some(Channel::Header(_) | Channel::Meta | Channel::None) | None => None,
    };
    // Without either, nothing that a server could take for a key is in the call.
    if call.key.is_none() && member.is_none() {
        return None;
    }
    let key = given_key(&call.params, call, channel.unwrap_or(&Channel::None))?;
    let key = keys.scoped(&call.principal.name, &key);
    let mut literal = Vec::new();
    write_string(&mut literal, &key);
    let mut scoped = call.clone();
    if let Some(at) = member.and_then(|member| argument_at(&scoped.params, member)) {
        put(&mut scoped, at, &literal);
    }
    if let Some(at) = meta_key(&scoped.params) {
        put(&mut scoped, at, &literal);
    }
    scoped.key = Some(key);
    Some(Box::new(scoped))
}

/// Returns where a key stands beside the arguments.
fn meta_key(params: &[u8]) -> Option<Span> {
    let meta = object::field(params, "_meta")?;
    let at = object::field(meta.of(params), KEY_META)?;
    Some(at.shift(meta.start))
}

/// Replaces a value in the parameters; what stands behind it moves.
fn put(call: &mut Call, at: Span, literal: &[u8]) {
    let shift = |range: &mut Range<usize>| {
        if range.start >= at.end {
            let (before, after) = (at.end - at.start, literal.len());
            *range = range.start - before + after..range.end - before + after;
        }
    };
    [Some(&mut call.name_at), call.progress_at.as_mut()]
        .into_iter()
        .flatten()
        .for_each(shift);
    call.params = replace(&call.params, at, literal).into();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bowline_core::call::{Principal, Role, Scope, Subject};
    use bowline_core::lane::Queueing;
    use bytes::Bytes;

    use super::*;

    fn call(who: &str, params: &str, key: Option<&str>) -> Call {
        let token = params.find("\"T\"");
        let at = object::field(params.as_bytes(), "name").unwrap();
        Call {
            principal: Arc::new(Principal::new(who, Role::Owner)),
            scope: Scope::All,
            subject: Subject::Tool("do".into()),
            params: Bytes::copy_from_slice(params.as_bytes()),
            name_at: at.start..at.end,
            makes_task: false,
            progress_at: token.map(|at| at..at + 3),
            id: Bytes::from_static(b"1"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
            key: key.map(Into::into),
            stateless: None,
        }
    }

    fn route(channel: Channel) -> Route {
        let route = Route::unlisted(&"s".into(), &"do".into());
        let keep = Duration::from_secs(1);
        Route {
            queue: Some(Arc::new(Queueing { keep, channel })),
            ..Route::clone(&route)
        }
    }

    #[test]
    fn key_is_scoped_in_every_channel_and_offsets_move() {
        let keys = KeyScope::default();
        let scoped = keys.scoped("ann", "k");
        let meta = r#"{"_meta":{"dev.bowline\/idempotencyKey":"k","progressToken":"T"},"name":"do","arguments":{"id":"k"}}"#;
        let unqueued = Route::unlisted(&"s".into(), &"do".into());
        let header = Channel::Header("Idempotency-Key".into());
        for route in [&*unqueued, &route(Channel::Meta), &route(header)] {
            let sent = scope_key(&keys, &call("ann", meta, Some("k")), route).unwrap();
            let text = String::from_utf8(sent.params.to_vec()).unwrap();
            assert_eq!(text, meta.replacen("\"k\"", &format!("\"{scoped}\""), 1));
            assert_eq!(&sent.params[sent.name_at], b"\"do\"");
            assert_eq!(&sent.params[sent.progress_at.unwrap()], b"\"T\"");
            assert_eq!(sent.key.as_deref(), Some(&*scoped));
        }
        // The argument is the key, and whatever else stands beside it is not passed on.
        let sent = scope_key(
            &keys,
            &call("ann", meta, Some("other")),
            &route(Channel::Argument("id".into())),
        );
        let text = String::from_utf8(sent.unwrap().params.to_vec()).unwrap();
        assert_eq!(text, meta.replace("\"k\"", &format!("\"{scoped}\"")));
    }

    #[test]
    fn call_without_key_is_not_copied() {
        let plain = call("ann", r#"{"name":"do","arguments":{"n":1}}"#, None);
        let keys = KeyScope::default();
        for channel in [Channel::None, Channel::Meta, Channel::Argument("id".into())] {
            assert!(scope_key(&keys, &plain, &route(channel)).is_none());
        }
    }
}
