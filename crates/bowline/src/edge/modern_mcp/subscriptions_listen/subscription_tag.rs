//! Adds the subscription id to notifications of a listen stream.

use bowline_wire::mcp::meta;
use bowline_wire::object;
use bowline_wire::span::ByteSpan;
use bowline_wire::splice::replace_span;
use bytes::Bytes;

/// Returns a notification with the id of the opening request, as written. The id of the server's
/// own stream is replaced.
pub(super) fn tag_notification(notification: &[u8], id: &[u8]) -> Bytes {
    let (at, with) = tag_edit(notification, id);
    replace_span(notification, at, &with).into()
}

fn tag_edit(notification: &[u8], id: &[u8]) -> (ByteSpan, Vec<u8>) {
    let Some(params) = object::field(notification, "params") else {
        let end = notification.iter().rposition(|byte| *byte == b'}');
        let end = end.unwrap_or(notification.len());
        let member = [
            b",\"params\":{\"_meta\":{",
            &*subscription_member(id),
            b"}}",
        ]
        .concat();
        return (empty_span(end), member);
    };
    let own = params.slice(notification);
    let Some(meta_span) = object::field(own, "_meta") else {
        let member = [b"\"_meta\":{", &*subscription_member(id), b"}"].concat();
        return insert_first(params, own, member);
    };
    let meta_span = meta_span.shift(params.start);
    let own = meta_span.slice(notification);
    // Values other than objects, such as null, are replaced.
    if !own.starts_with(b"{") {
        return (meta_span, [b"{", &*subscription_member(id), b"}"].concat());
    }
    match object::field(own, meta::SUBSCRIPTION_ID) {
        Some(other) => (other.shift(meta_span.start), id.to_vec()),
        None => insert_first(meta_span, own, subscription_member(id)),
    }
}

/// Returns the JSON member with the subscription id.
pub(super) fn subscription_member(id: &[u8]) -> Vec<u8> {
    [b"\"", meta::SUBSCRIPTION_ID.as_bytes(), b"\":", id].concat()
}

/// Inserts a member at the start of an object.
fn insert_first(object: ByteSpan, own: &[u8], mut member: Vec<u8>) -> (ByteSpan, Vec<u8>) {
    if object::fields(own).next().is_some() {
        member.push(b',');
    }
    (empty_span(object.start + 1), member)
}

const fn empty_span(at: usize) -> ByteSpan {
    ByteSpan { start: at, end: at }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn tagging_keeps_params_and_id_text() {
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
                let told = tag_notification(news.to_string().as_bytes(), id.as_bytes());
                let told: Value = serde_json::from_slice(&told).unwrap();
                let mut want = params.clone();
                want["_meta"][meta::SUBSCRIPTION_ID] = serde_json::from_str(id).unwrap();
                assert_eq!(told["params"], want, "{news}");
                assert_eq!(told["method"], "m");
            }
        }
    }
}
