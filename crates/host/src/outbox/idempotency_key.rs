//! Idempotency key of a write: given by the caller or generated, and inserted where the server
//! expects it.

use std::sync::Arc;

use bowline_core::call::{CallRequest, Route};
use bowline_core::hex::to_hex;
use bowline_core::lane::{KEY_META, KeyChannel};
use bowline_journal::engine::KEY_BYTES_MAX;
use bowline_wire::canonical::to_canonical;
use bowline_wire::splice::to_literal;
use bowline_wire::{ByteSpan, ObjectEditor, object};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// Random bytes of a generated key.
const KEY_BYTES: usize = 16;

/// A write with its key in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyedWrite {
    pub(super) key: Arc<str>,
    /// Parameters with the server's own tool name and the key.
    pub(super) params: Bytes,
    /// Digest of tool and arguments without the key; equal keys require equal digests.
    pub(super) digest: [u8; 32],
    /// Name of the write in its lane.
    pub(super) dedupe: Arc<str>,
}

impl KeyedWrite {
    /// Inserts the key of a call as required by `channel`. Changes nothing else except the tool
    /// name. Fails without a random source.
    pub(super) fn new(
        call: &CallRequest,
        route: &Route,
        channel: &KeyChannel,
    ) -> Result<Self, KeyError> {
        let client_key = given_key(&call.message.params, call, channel);
        let key = client_key.map_or_else(generate_key, Ok)?;
        let mut editor = ObjectEditor::new(&call.message.params);
        let whole = editor.whole();
        editor.replace(ByteSpan::from_range(&call.name_at), to_literal(&route.name));
        match channel {
            KeyChannel::Argument(member) if argument_at(&call.message.params, member).is_none() => {
                editor.set_last(whole, &["arguments", member], to_literal(&key));
            }
            KeyChannel::Meta => {
                editor.set_last(whole, &["_meta", KEY_META], to_literal(&key));
            }
            KeyChannel::Argument(_) | KeyChannel::Header(_) | KeyChannel::None => {}
        }
        let params = editor.finish();
        Ok(Self {
            digest: write_digest(&params, &route.name, channel),
            dedupe: dedupe_name(&route.name, &key),
            params: params.into(),
            key,
        })
    }
}

/// The random source failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random number could be had: {0}")]
pub(super) struct KeyError(Arc<str>);

/// Returns the caller's key: from the key argument, or from `_meta`.
pub(crate) fn given_key(
    params: &[u8],
    call: &CallRequest,
    channel: &KeyChannel,
) -> Option<Arc<str>> {
    if let KeyChannel::Argument(member) = channel
        && let Some(at) = argument_at(params, member)
    {
        let value = at.slice(params);
        // A number is a valid key, as written.
        let text = object::parse_string(value).map_or_else(
            || String::from_utf8_lossy(value).into_owned(),
            std::borrow::Cow::into_owned,
        );
        return Some(text.into());
    }
    call.idempotency_key.clone().filter(|key| !key.is_empty())
}

/// Returns the position of an argument, unless missing or blank.
pub(crate) fn argument_at(params: &[u8], member: &str) -> Option<ByteSpan> {
    let arguments = object::field(params, "arguments")?;
    let at = object::field(arguments.slice(params), member)?.shift(arguments.start);
    (!is_blank(at.slice(params))).then_some(at)
}

fn is_blank(value: &[u8]) -> bool {
    value == b"null" || value == b"\"\""
}

fn generate_key() -> Result<Arc<str>, KeyError> {
    let mut random = [0; KEY_BYTES];
    getrandom::fill(&mut random).map_err(|error| KeyError(error.to_string().into()))?;
    Ok(to_hex(&random).into())
}

/// Hashes tool and arguments without the key.
fn write_digest(params: &[u8], tool: &str, channel: &KeyChannel) -> [u8; 32] {
    let arguments = object::field(params, "arguments").map_or(&b"{}"[..], |at| at.slice(params));
    let keyless;
    let arguments = match channel {
        KeyChannel::Argument(member) => {
            let mut editor = ObjectEditor::new(arguments);
            editor.set_last(editor.whole(), &[member], &b"null"[..]);
            keyless = editor.finish();
            keyless.as_slice()
        }
        KeyChannel::Meta | KeyChannel::Header(_) | KeyChannel::None => arguments,
    };
    let mut hasher = Sha256::new();
    hasher.update(tool.as_bytes());
    hasher.update([0]);
    match to_canonical(arguments) {
        Ok(text) => hasher.update(&text),
        Err(_) => hasher.update(arguments),
    }
    hasher.finalize().into()
}

/// Returns the name of a write in its lane; hashed if too long.
fn dedupe_name(tool: &str, key: &str) -> Arc<str> {
    let text = format!("{tool}\n{key}");
    match text.len() <= KEY_BYTES_MAX {
        true => text.into(),
        false => to_hex(&Sha256::digest(text.as_bytes())).into(),
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{CallSubject, EndpointScope, Principal, RequestMessage, Role};
    use bowline_core::era::Era;

    use super::*;

    fn tool_call(params: &str, key: Option<&str>) -> CallRequest {
        let at = object::field(params.as_bytes(), "name").unwrap();
        CallRequest {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: EndpointScope::All,
            subject: CallSubject::Tool("s__do".into()),
            name_at: at.start..at.end,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: key.map(Into::into),
            stateless: None,
            message: RequestMessage {
                params: Bytes::copy_from_slice(params.as_bytes()),
                progress_at: None,
                id: Bytes::from_static(b"1"),
                client: None,
                trace: None,
                era: Era::Legacy,
            },
        }
    }

    fn keyed_write(params: &str, key: Option<&str>, channel: &KeyChannel) -> (KeyedWrite, String) {
        let route = Route::new_unlisted(&"s".into(), &"do".into());
        let keyed = KeyedWrite::new(&tool_call(params, key), &route, channel).unwrap();
        let text = String::from_utf8(keyed.params.to_vec()).unwrap();
        (keyed, text)
    }

    fn argument_channel() -> KeyChannel {
        KeyChannel::Argument("id".into())
    }

    #[test]
    fn key_is_inserted_without_further_changes() {
        for (params, channel, want) in [
            (
                r#"{"name":"s__do","arguments":{"n": 1.50}}"#,
                argument_channel(),
                r#"{"name":"do","arguments":{"n": 1.50,"id":"k"}}"#,
            ),
            (
                r#"{"arguments":{ }, "name":"s__do"}"#,
                argument_channel(),
                r#"{"arguments":{ "id":"k"}, "name":"do"}"#,
            ),
            (
                r#"{"name":"s__do"}"#,
                argument_channel(),
                r#"{"name":"do","arguments":{"id":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{"id":null,"n":1}}"#,
                argument_channel(),
                r#"{"name":"do","arguments":{"id":"k","n":1}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{},"_meta":{"a":1}}"#,
                KeyChannel::Meta,
                r#"{"name":"do","arguments":{},"_meta":{"a":1,"dev.bowline/idempotencyKey":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{}}"#,
                KeyChannel::Meta,
                r#"{"name":"do","arguments":{},"_meta":{"dev.bowline/idempotencyKey":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{}}"#,
                KeyChannel::Header("Idempotency-Key".into()),
                r#"{"name":"do","arguments":{}}"#,
            ),
        ] {
            let (_, text) = keyed_write(params, Some("k"), &channel);
            assert_eq!(text, want);
        }
    }

    #[test]
    fn caller_argument_is_used_as_key() {
        for (value, key) in [(r#""a\u0062""#, "ab"), ("7", "7")] {
            let params = format!(r#"{{"name":"s__do","arguments":{{"id":{value}}}}}"#);
            let (keyed, text) = keyed_write(&params, Some("other"), &argument_channel());
            assert_eq!(&*keyed.key, key);
            assert_eq!(text, params.replace("s__do", "do"));
        }
    }

    #[test]
    fn generated_keys_are_long_and_unique() {
        let params = r#"{"name":"s__do","arguments":{"id":""}}"#;
        let (one, _) = keyed_write(params, None, &argument_channel());
        let (two, text) = keyed_write(params, Some(""), &argument_channel());
        assert_ne!(one.key, two.key);
        assert_eq!(two.key.len(), 2 * KEY_BYTES);
        assert!(text.contains(&*two.key), "{text}");
        assert_eq!(one.digest, two.digest, "the key does not count");
    }

    #[test]
    fn digest_ignores_argument_order_and_key() {
        let one = keyed_write(
            r#"{"name":"s__do","arguments":{"a":1,"b":2}}"#,
            Some("k"),
            &argument_channel(),
        );
        let two = keyed_write(
            r#"{"name":"s__do","arguments":{"id":"k", "b":2, "a":1}}"#,
            None,
            &argument_channel(),
        );
        let three = keyed_write(
            r#"{"name":"s__do","arguments":{"a":1,"b":3}}"#,
            Some("k"),
            &argument_channel(),
        );
        assert_eq!(one.0.digest, two.0.digest);
        assert_eq!(one.0.dedupe, two.0.dedupe);
        assert_ne!(one.0.digest, three.0.digest);
        assert_eq!(one.0.dedupe, three.0.dedupe);
    }

    #[test]
    fn long_key_is_hashed_in_dedupe_name() {
        let long = "k".repeat(9_999);
        let params = r#"{"name":"s__do","arguments":{}}"#;
        let (keyed, _) = keyed_write(params, Some(&long), &KeyChannel::Meta);
        assert!(keyed.dedupe.len() <= KEY_BYTES_MAX);
        assert_eq!(keyed.key.len(), 9_999);
    }
}
