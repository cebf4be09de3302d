//! The idempotency key of a write: taken from its caller or made, and put where its server looks.

use std::sync::Arc;

use bowline_core::call::{Call, Route};
use bowline_core::hex::hex;
use bowline_core::lane::{Channel, KEY_META};
use bowline_journal::engine::KEY_BYTES_MAX;
use bowline_wire::canonical::canonical;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// Random bytes in a key that is made here.
const KEY_BYTES: usize = 16;

/// A write with its key in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keyed {
    pub(super) key: Arc<str>,
    /// The parameters under the server's own name of the tool, the key included.
    pub(super) params: Bytes,
    /// What two writes of the same key must agree on: the tool and its arguments, but for the key.
    pub(super) digest: [u8; 32],
    /// Names the write in its lane.
    pub(super) dedupe: Arc<str>,
}

impl Keyed {
    /// Puts the key of a call where `channel` says. Nothing else is changed but the name of the
    /// tool. Fails where no random number is to be had.
    pub(super) fn new(call: &Call, route: &Route, channel: &Channel) -> Result<Self, KeyError> {
        let name_at = Span {
            start: call.name_at.start,
            end: call.name_at.end,
        };
        let mut name = Vec::new();
        write_string(&mut name, &route.name);
        let params = replace(&call.params, name_at, &name);
        let given = given_key(&params, call, channel);
        let key = given.map_or_else(mint, Ok)?;
        let mut literal = Vec::new();
        write_string(&mut literal, &key);
        let params = match channel {
            Channel::Argument(member) => with_argument(params, member, &literal),
            Channel::Meta => within(&params, "_meta", KEY_META, &literal),
            Channel::Header(_) | Channel::None => params,
        };
        Ok(Self {
            digest: digest(&params, &route.name, channel),
            dedupe: dedupe(&route.name, &key),
            params: params.into(),
            key,
        })
    }
}

/// There was no random number to make a key of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random number could be had: {0}")]
pub(super) struct KeyError(Arc<str>);

/// Returns the key that the caller chose: the argument that carries it, or what stands beside the
/// arguments.
pub(crate) fn given_key(params: &[u8], call: &Call, channel: &Channel) -> Option<Arc<str>> {
    if let Channel::Argument(member) = channel
        && let Some(at) = argument_at(params, member)
    {
        let value = at.of(params);
        // A number is a key as well, as it is written.
        let text = object::string(value).map_or_else(
            || String::from_utf8_lossy(value).into_owned(),
            std::borrow::Cow::into_owned,
        );
        return Some(text.into());
    }
    call.key.clone().filter(|key| !key.is_empty())
}

/// Returns where an argument stands, unless it is absent or blank.
pub(crate) fn argument_at(params: &[u8], member: &str) -> Option<Span> {
    let arguments = object::field(params, "arguments")?;
    let at = object::field(arguments.of(params), member)?.shift(arguments.start);
    (!is_blank(at.of(params))).then_some(at)
}

fn is_blank(value: &[u8]) -> bool {
    value == b"null" || value == b"\"\""
}

fn mint() -> Result<Arc<str>, KeyError> {
    let mut random = [0; KEY_BYTES];
    getrandom::fill(&mut random).map_err(|error| KeyError(error.to_string().into()))?;
    Ok(hex(&random).into())
}

/// Puts a key into the argument of this name, unless the caller did.
fn with_argument(params: Vec<u8>, member: &str, literal: &[u8]) -> Vec<u8> {
    match argument_at(&params, member) {
        Some(_) => params,
        None => within(&params, "arguments", member, literal),
    }
}

/// Sets a member of an object that is itself a member, each of which is made where it is absent.
fn within(params: &[u8], outer: &str, member: &str, value: &[u8]) -> Vec<u8> {
    let Some(at) = object::field(params, outer) else {
        let inner = set(b"{}", member, value);
        return set(params, outer, &inner);
    };
    let object = at.of(params);
    // What is no object, such as `null`, holds nothing that could be lost.
    let object = if object.starts_with(b"{") {
        object
    } else {
        b"{}"
    };
    let inner = set(object, member, value);
    replace(params, at, &inner)
}

/// Sets one member of an object; a new one comes last.
fn set(object: &[u8], member: &str, value: &[u8]) -> Vec<u8> {
    if let Some(at) = object::field(object, member) {
        return replace(object, at, value);
    }
    let mut with = Vec::with_capacity(member.len() + value.len() + 4);
    if object::fields(object).next().is_some() {
        with.push(b',');
    }
    write_string(&mut with, member);
    with.push(b':');
    with.extend_from_slice(value);
    let end = object.iter().rposition(|byte| *byte == b'}');
    let end = end.unwrap_or(object.len());
    replace(object, Span { start: end, end }, &with)
}

/// Hashes what the write says, but for its key.
fn digest(params: &[u8], tool: &str, channel: &Channel) -> [u8; 32] {
    let arguments = object::field(params, "arguments").map_or(&b"{}"[..], |at| at.of(params));
    let keyless;
    let arguments = match channel {
        Channel::Argument(member) => {
            keyless = set(arguments, member, b"null");
            keyless.as_slice()
        }
        Channel::Meta | Channel::Header(_) | Channel::None => arguments,
    };
    let mut hasher = Sha256::new();
    hasher.update(tool.as_bytes());
    hasher.update([0]);
    match canonical(arguments) {
        Ok(text) => hasher.update(&text),
        Err(_) => hasher.update(arguments),
    }
    hasher.finalize().into()
}

/// Names a write in its lane; what would be too long is hashed.
fn dedupe(tool: &str, key: &str) -> Arc<str> {
    let text = format!("{tool}\n{key}");
    match text.len() <= KEY_BYTES_MAX {
        true => text.into(),
        false => hex(&Sha256::digest(text.as_bytes())).into(),
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{Principal, Role, Scope, Subject};

    use super::*;

    fn call(params: &str, key: Option<&str>) -> Call {
        let at = object::field(params.as_bytes(), "name").unwrap();
        Call {
            principal: Arc::new(Principal::new("ann", Role::Owner)),
            scope: Scope::All,
            subject: Subject::Tool("s__do".into()),
            params: Bytes::copy_from_slice(params.as_bytes()),
            name_at: at.start..at.end,
            makes_task: false,
            progress_at: None,
            id: Bytes::from_static(b"1"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
            key: key.map(Into::into),
            stateless: None,
        }
    }

    fn keyed(params: &str, key: Option<&str>, channel: &Channel) -> (Keyed, String) {
        let route = Route::unlisted(&"s".into(), &"do".into());
        let keyed = Keyed::new(&call(params, key), &route, channel).unwrap();
        let text = String::from_utf8(keyed.params.to_vec()).unwrap();
        (keyed, text)
    }

    fn argument() -> Channel {
        Channel::Argument("id".into())
    }

    #[test]
    fn a_key_is_put_where_the_server_looks_and_nothing_else_is_touched() {
        for (params, channel, want) in [
            (
                r#"{"name":"s__do","arguments":{"n": 1.50}}"#,
                argument(),
                r#"{"name":"do","arguments":{"n": 1.50,"id":"k"}}"#,
            ),
            (
                r#"{"arguments":{ }, "name":"s__do"}"#,
                argument(),
                r#"{"arguments":{ "id":"k"}, "name":"do"}"#,
            ),
            (
                r#"{"name":"s__do"}"#,
                argument(),
                r#"{"name":"do","arguments":{"id":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{"id":null,"n":1}}"#,
                argument(),
                r#"{"name":"do","arguments":{"id":"k","n":1}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{},"_meta":{"a":1}}"#,
                Channel::Meta,
                r#"{"name":"do","arguments":{},"_meta":{"a":1,"dev.bowline/idempotencyKey":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{}}"#,
                Channel::Meta,
                r#"{"name":"do","arguments":{},"_meta":{"dev.bowline/idempotencyKey":"k"}}"#,
            ),
            (
                r#"{"name":"s__do","arguments":{}}"#,
                Channel::Header("Idempotency-Key".into()),
                r#"{"name":"do","arguments":{}}"#,
            ),
        ] {
            let (_, text) = keyed(params, Some("k"), &channel);
            assert_eq!(text, want);
        }
    }

    #[test]
    fn the_callers_argument_is_the_key_and_stays_as_it_is_written() {
        for (value, key) in [(r#""a\u0062""#, "ab"), ("7", "7")] {
            let params = format!(r#"{{"name":"s__do","arguments":{{"id":{value}}}}}"#);
            let (keyed, text) = keyed(&params, Some("other"), &argument());
            assert_eq!(&*keyed.key, key);
            assert_eq!(text, params.replace("s__do", "do"));
        }
    }

    #[test]
    fn keys_that_are_made_are_long_and_never_the_same() {
        let params = r#"{"name":"s__do","arguments":{"id":""}}"#;
        let (one, _) = keyed(params, None, &argument());
        let (two, text) = keyed(params, Some(""), &argument());
        assert_ne!(one.key, two.key);
        assert_eq!(two.key.len(), 2 * KEY_BYTES);
        assert!(text.contains(&*two.key), "{text}");
        assert_eq!(one.digest, two.digest, "the key does not count");
    }

    #[test]
    fn a_digest_is_of_the_tool_and_its_arguments_however_they_are_written() {
        let one = keyed(
            r#"{"name":"s__do","arguments":{"a":1,"b":2}}"#,
            Some("k"),
            &argument(),
        );
        let two = keyed(
            r#"{"name":"s__do","arguments":{"id":"k", "b":2, "a":1}}"#,
            None,
            &argument(),
        );
        let three = keyed(
            r#"{"name":"s__do","arguments":{"a":1,"b":3}}"#,
            Some("k"),
            &argument(),
        );
        assert_eq!(one.0.digest, two.0.digest);
        assert_eq!(one.0.dedupe, two.0.dedupe);
        assert_ne!(one.0.digest, three.0.digest);
        assert_eq!(one.0.dedupe, three.0.dedupe);
    }

    #[test]
    fn a_key_of_any_length_names_a_write() {
        let long = "k".repeat(9_999);
        let params = r#"{"name":"s__do","arguments":{}}"#;
        let (keyed, _) = keyed(params, Some(&long), &Channel::Meta);
        assert!(keyed.dedupe.len() <= KEY_BYTES_MAX);
        assert_eq!(keyed.key.len(), 9_999);
    }
}
