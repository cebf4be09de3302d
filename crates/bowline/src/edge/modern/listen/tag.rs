//! Marks what is said on a stream with the request that opened it.

use bowline_wire::mcp::meta;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::replace;
use bytes::Bytes;

/// Returns a notification with the id of the request whose stream it is on, which stands as it
/// was written. A mark of a server's own stream goes.
pub(super) fn tagged(notification: &[u8], id: &[u8]) -> Bytes {
    let (at, with) = edit(notification, id);
    replace(notification, at, &with).into()
}

fn edit(notification: &[u8], id: &[u8]) -> (Span, Vec<u8>) {
    let Some(params) = object::field(notification, "params") else {
        let end = notification.iter().rposition(|byte| *byte == b'}');
        let end = end.unwrap_or(notification.len());
        let member = [b",\"params\":{\"_meta\":{", &*mark(id), b"}}"].concat();
        return (empty(end), member);
    };
    let own = params.of(notification);
    let Some(held) = object::field(own, "_meta") else {
        let member = [b"\"_meta\":{", &*mark(id), b"}"].concat();
        return inside(params, own, member);
    };
    let held = held.shift(params.start);
    let own = held.of(notification);
    // What is no object, such as null, says nothing.
    if !own.starts_with(b"{") {
        return (held, [b"{", &*mark(id), b"}"].concat());
    }
    match object::field(own, meta::SUBSCRIPTION_ID) {
        Some(other) => (other.shift(held.start), id.to_vec()),
        None => inside(held, own, mark(id)),
    }
}

/// Returns the member that names the request.
pub(super) fn mark(id: &[u8]) -> Vec<u8> {
    [b"\"", meta::SUBSCRIPTION_ID.as_bytes(), b"\":", id].concat()
}

/// Puts one more member first into an object.
fn inside(object: Span, own: &[u8], mut member: Vec<u8>) -> (Span, Vec<u8>) {
    if object::fields(own).next().is_some() {
        member.push(b',');
    }
    (empty(object.start + 1), member)
}

const fn empty(at: usize) -> Span {
    Span { start: at, end: at }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn news_of_every_shape_carry_the_id_as_it_was_written_and_lose_nothing() {
        for (news, params) in [
            (json!({"method": "m"}), json!({})),
            (json!({"method": "m", "params": {}}), json!({})),
            (
                json!({"method": "m", "params": {"uri": "a"}}),
                json!({"uri": "a"}),
            ),
            (
                json!({"method": "m", "params": {"_meta": {}, "uri": "a"}}),
                json!({"uri": "a"}),
            ),
            (
                json!({"method": "m", "params": {"_meta": null, "uri": "a"}}),
                json!({"uri": "a"}),
            ),
            (
                json!({"params": {"_meta": {"k": 1}}, "method": "m"}),
                json!({"_meta": {"k": 1}}),
            ),
            (
                json!({"params": {"_meta": {meta::SUBSCRIPTION_ID: 9, "k": 1}}, "method": "m"}),
                json!({"_meta": {"k": 1}}),
            ),
        ] {
            for id in ["\"1\"", "1", "\"\\u00e4\""] {
                let told = tagged(news.to_string().as_bytes(), id.as_bytes());
                let told: Value = serde_json::from_slice(&told).unwrap();
                let mut want = params.clone();
                want["_meta"][meta::SUBSCRIPTION_ID] = serde_json::from_str(id).unwrap();
                assert_eq!(told["params"], want, "{news}");
                assert_eq!(told["method"], "m");
            }
        }
    }
}
