//! Adds the subscription id to notifications of a listen stream.

use bowline_wire::mcp::meta;
use bowline_wire::{MemberList, ObjectEditor};
use bytes::Bytes;

/// Returns a notification with the id of the opening request, as written. The id of the server's
/// own stream is replaced.
pub(super) fn tag_notification(notification: &[u8], id: &[u8]) -> Bytes {
    let mut editor = ObjectEditor::new(notification);
    let path = ["params", "_meta", meta::SUBSCRIPTION_ID];
    editor.set_last(editor.whole(), &path, id);
    editor.finish().into()
}

/// Returns the `_meta` object with the subscription id.
pub(super) fn subscription_meta(id: &[u8]) -> Vec<u8> {
    MemberList::from_member(meta::SUBSCRIPTION_ID, id).into_object()
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
