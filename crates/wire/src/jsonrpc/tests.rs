//! Tests of messages, with `serde_json` as the oracle.

use bowline_core::call::BodyKind;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::splice::{ByteEdit, EditedText};
use crate::testing::{fuzz, oracle};

fn parse_from_client(text: &str) -> Result<RpcMessage, MessageError> {
    RpcMessage::parse_from_client(Bytes::copy_from_slice(text.as_bytes()))
}

fn parse_from_server(text: &str) -> Result<RpcMessage, MessageError> {
    RpcMessage::parse_from_server(Bytes::copy_from_slice(text.as_bytes()))
}

fn to_text(bytes: Option<&[u8]>) -> Option<&str> {
    bytes.map(|bytes| std::str::from_utf8(bytes).unwrap())
}

#[test]
fn request_exposes_envelope_fields() {
    let text = "{ \"jsonrpc\":\"2.0\", \"id\" : 7 ,\n\"method\":\"tools/call\",\
                \"params\" : {\"name\":\"a\", \"x\":1e400} , \"extra\":[1] }";
    let message = parse_from_client(text).unwrap();
    assert_eq!(message.kind(), MessageKind::Request);
    assert_eq!(to_text(message.id()), Some("7"));
    assert_eq!(message.method(), Some("tools/call"));
    assert_eq!(
        to_text(message.params()),
        Some("{\"name\":\"a\", \"x\":1e400}")
    );
    assert_eq!(
        message.params_span().unwrap().slice(text.as_bytes()),
        message.params().unwrap()
    );
    assert_eq!(message.id_span().unwrap().slice(text.as_bytes()), b"7");
    assert_eq!((message.result(), message.error()), (None, None));
    assert_eq!((message.result_span(), message.error_span()), (None, None));
    assert_eq!(message.bytes(), text.as_bytes());
    assert_eq!(message.into_bytes(), text.as_bytes());
}

#[test]
fn method_decides_message_kind() {
    for (rest, kind) in [
        (r#""id":1,"method":"a""#, MessageKind::Request),
        (r#""id":1,"method":"a","result":1"#, MessageKind::Request),
        (r#""id":1,"method":"""#, MessageKind::Request),
        (r#""method":"a""#, MessageKind::Notification),
        (r#""method":"a","error":{}"#, MessageKind::Notification),
        (r#""id":1,"result":{}"#, MessageKind::Response),
        (r#""id":1,"result":null"#, MessageKind::Response),
        (
            r#""id":1,"error":{"code":1,"message":""}"#,
            MessageKind::Response,
        ),
        (r#""id":null,"error":{}"#, MessageKind::Response),
        (r#""error":{}"#, MessageKind::Response),
    ] {
        let text = format!("{{\"jsonrpc\":\"2.0\",{rest}}}");
        assert_eq!(parse_from_client(&text).unwrap().kind(), kind, "{text}");
        assert_eq!(parse_from_server(&text).unwrap().kind(), kind, "{text}");
    }
}

#[test]
fn ids_keep_their_spelling() {
    for id in [
        "1",
        "0",
        "-0",
        "-17",
        "123456789012345678901234567890",
        "\"1\"",
        "\"\"",
        "\"a b\"",
        r#""\u0031""#,
        r#""\ud800""#,
        r#""\n\"""#,
    ] {
        let message =
            parse_from_client(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#)).unwrap();
        assert_eq!(to_text(message.id()), Some(id));
        let message = parse_from_server(&format!(r#"{{"result":[],"id": {id} }}"#)).unwrap();
        assert_eq!(to_text(message.id()), Some(id));
    }
}

#[test]
fn invalid_ids_are_refused() {
    for id in [
        "1.0", "1.5", "1e3", "1E3", "-0.0", "null", "{}", "[]", "[1]", "true", "false",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#);
        assert_eq!(
            parse_from_client(&text).unwrap_err(),
            MessageError::BadId,
            "{text}"
        );
        assert_eq!(
            parse_from_server(&text).unwrap_err(),
            MessageError::BadId,
            "{text}"
        );
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(
            parse_from_client(&text).unwrap_err(),
            MessageError::BadId,
            "{text}"
        );
    }
}

#[test]
fn only_error_response_may_lack_id() {
    let error =
        parse_from_client(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}"#).unwrap();
    assert_eq!((error.id(), error.id_span()), (None, None));
    assert_eq!(to_text(error.error()), Some(r#"{"code":-32700}"#));
    let bad = parse_from_client(r#"{"jsonrpc":"2.0","id":1.5,"error":{}}"#);
    assert_eq!(bad.unwrap_err(), MessageError::BadId);
    let absent = parse_from_client(r#"{"jsonrpc":"2.0","result":{}}"#);
    assert_eq!(absent.unwrap_err(), MessageError::BadId);
}

#[test]
fn null_result_is_a_result() {
    let message = parse_from_client(r#"{"jsonrpc":"2.0","id":1,"result":null}"#).unwrap();
    assert_eq!(to_text(message.result()), Some("null"));
    assert_eq!(message.error(), None);
}

#[test]
fn invalid_messages_name_their_error() {
    for (text, refusal) in [
        ("[]", MessageError::Batch),
        (
            r#" [{"jsonrpc":"2.0","id":1,"method":"a"}]"#,
            MessageError::Batch,
        ),
        ("1", MessageError::NotObject),
        ("\"{}\"", MessageError::NotObject),
        ("null", MessageError::NotObject),
        ("{}", MessageError::BadVersion),
        (r#"{"id":1,"method":"a"}"#, MessageError::BadVersion),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
            MessageError::BadVersion,
        ),
        (
            r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#,
            MessageError::BadVersion,
        ),
        (
            r#"{"jsonrpc":null,"id":1,"method":"a"}"#,
            MessageError::BadVersion,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":1}"#,
            MessageError::BadMethod,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":null,"result":1}"#,
            MessageError::BadMethod,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":{}}"#,
            MessageError::BadMethod,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
            MessageError::BadMethod,
        ),
        (r#"{"jsonrpc":"2.0","id":1}"#, MessageError::Shape),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
            MessageError::Shape,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":null}"#,
            MessageError::Shape,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#,
            MessageError::Shape,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"error":null}"#,
            MessageError::Shape,
        ),
    ] {
        assert_eq!(parse_from_client(text).unwrap_err(), refusal, "{text}");
        assert_eq!(refusal.code(), -32600);
    }
}

#[test]
fn invalid_json_names_its_error() {
    for (text, fault) in [
        ("", JsonError::Empty),
        ("{", JsonError::Syntax { at: 1 }),
        ("[1,", JsonError::Syntax { at: 3 }),
        ("\u{feff}{}", JsonError::Syntax { at: 0 }),
        ("{\"a\":\"\0\"}", JsonError::Syntax { at: 6 }),
        (r#"{"a":NaN}"#, JsonError::Syntax { at: 5 }),
        ("{}\n{}", JsonError::Trailing { at: 3 }),
        (
            r#"{"method":"a","method":"b"}"#,
            JsonError::DuplicateKey { at: 14 },
        ),
        (r#"{"id":1,"i\u0064":2}"#, JsonError::DuplicateKey { at: 8 }),
    ] {
        assert_eq!(
            parse_from_client(text).unwrap_err(),
            MessageError::Json(fault),
            "{text:?}"
        );
        assert_eq!(
            parse_from_server(text).unwrap_err(),
            MessageError::Json(fault),
            "{text:?}"
        );
        assert_eq!(MessageError::Json(fault).code(), -32700);
    }
}

#[test]
fn duplicate_keys_are_refused_by_sender() {
    let text = r#"{"jsonrpc":"2.0","method":"a","params":{"a":1,"\u0061":2}}"#;
    let fault = JsonError::DuplicateKey { at: 46 };
    assert_eq!(
        parse_from_client(text).unwrap_err(),
        MessageError::Json(fault)
    );
    assert_eq!(parse_from_server(text).unwrap().method(), Some("a"));
}

#[test]
fn server_may_omit_version() {
    assert!(parse_from_server(r#"{"id":1,"result":{}}"#).is_ok());
    let other = parse_from_server(r#"{"jsonrpc":"1.0","id":1,"result":{}}"#);
    assert_eq!(other.unwrap_err(), MessageError::BadVersion);
    assert!(parse_from_client(r#"{"jsonrpc":"2\u002e0","method":"a"}"#).is_ok());
}

#[test]
fn null_result_or_error_of_server_is_ignored() {
    let both = |result: &str, error: &str| {
        let text = format!(r#"{{"id":1,"result":{result},"error":{error}}}"#);
        parse_from_server(&text).map(|message| {
            let own = |bytes: Option<&[u8]>| to_text(bytes).map(str::to_owned);
            (own(message.result()), own(message.error()))
        })
    };
    assert_eq!(both("{}", "null"), Ok((Some("{}".into()), None)));
    assert_eq!(both("null", "null"), Ok((Some("null".into()), None)));
    assert_eq!(both("null", "{}"), Ok((None, Some("{}".into()))));
    assert_eq!(both("{}", "{}"), Err(MessageError::Shape));
    let text = parse_from_server(r#"{"id":1,"error":"went wrong"}"#).unwrap();
    assert_eq!(to_text(text.error()), Some("\"went wrong\""));
    let neither = parse_from_server(r#"{"id":1,"error":null}"#);
    assert_eq!(neither.unwrap_err(), MessageError::Shape);
}

#[test]
fn envelope_escapes_are_resolved() {
    let text = r#"{"jsonrpc":"2.0","\u0069d":1,"\u006dethod":"tools\/c\u0061ll"}"#;
    let message = parse_from_client(text).unwrap();
    assert_eq!(message.method(), Some("tools/call"));
    assert_eq!(to_text(message.id()), Some("1"));
}

#[test]
fn message_depth_is_limited_to_64() {
    let text = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{open}{close}}}"#)
    };
    assert!(parse_from_client(&text(64)).is_ok());
    let deep = parse_from_client(&text(65)).unwrap_err();
    assert!(matches!(deep, MessageError::Json(JsonError::Depth { .. })));
    let deep = parse_from_server(&text(100_000)).unwrap_err();
    assert!(matches!(deep, MessageError::Json(JsonError::Depth { .. })));
}

#[test]
fn refused_message_id_is_found_when_certain() {
    let deep = format!(
        r#"{{"a":{}{},"id":"x"}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    for (text, id) in [
        (r#"{"id":1,"method":2}"#, Some("1")),
        (r#"{"a":1,"a":2,"id":"x"}"#, Some("\"x\"")),
        (r#"{"\u0069d":5}"#, Some("5")),
        (r#"{"id":5,"params":NaN}"#, Some("5")),
        (deep.as_str(), Some("\"x\"")),
        (r#"{"id":1,"id":2}"#, None),
        (r#"{"id":1.5}"#, None),
        (r#"{"id":null}"#, None),
        (r#"{"id":{}}"#, None),
        (r#"{"id":01}"#, None),
        (r#"{"id":-}"#, None),
        ("{\"id\":\"\n\"}", None),
        (r#"{"id":"x"#, None),
        (r#"{"params":{"id":1}}"#, None),
        (r#"[{"id":1}]"#, None),
        ("", None),
    ] {
        assert_eq!(to_text(find_refused_id(text.as_bytes())), id, "{text:.80}");
    }
    assert_eq!(find_refused_id(b"{\"id\":\"\xff\"}"), None);
}

#[test]
fn written_request_is_one_line() {
    let mut out = b"before\n".to_vec();
    let source = b"{\n\t\"name\": \"a\\n\",\r\n \"x\": 1 }";
    let edits = [ByteEdit {
        at: ByteSpan { start: 11, end: 16 },
        with: b"\"b\\n\"\n".into(),
    }];
    // A replacement is JSON as well, so line breaks are flattened alike.
    write_request(
        &mut out,
        u64::MAX,
        "a\"\n",
        Some(EditedText {
            source,
            edits: &edits,
        }),
    );
    let want = "before\n{\"jsonrpc\":\"2.0\",\"id\":18446744073709551615,\"method\":\"a\\\"\\n\",\
                \"params\":{ \t\"name\": \"b\\n\" ,   \"x\": 1 }}";
    assert_eq!(String::from_utf8(out).unwrap(), want);

    let mut out = Vec::new();
    write_request(&mut out, 0, "ping", None);
    assert_eq!(out, br#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#);
}

#[test]
fn envelope_keeps_payload_and_tells_its_range() {
    let payload = b"{\n\"a\" : 1.50 }";
    for (envelope, member) in [
        (
            Envelope::Request {
                id: b"\"x\"",
                method: "m",
            },
            "params",
        ),
        (Envelope::Notification { method: "m" }, "params"),
        (Envelope::from_body(b"7", BodyKind::Result), "result"),
        (Envelope::from_body(b"7", BodyKind::Error), "error"),
        (Envelope::Error { id: None }, "error"),
    ] {
        let mut out = Vec::with_capacity(envelope.capacity(payload.len()));
        let room = out.capacity();
        let range = envelope.write(&mut out, |out| out.extend_from_slice(payload));
        assert_eq!(out.capacity(), room, "{member}");
        assert_eq!(&out[range.clone()], payload);
        assert_eq!(out, envelope.to_vec(payload));
        let at = object::field(&out, member).unwrap();
        assert_eq!(at.start..at.end, range);
        RpcMessage::parse_from_client(out.into()).unwrap();
    }
}

#[test]
fn written_messages_round_trip() {
    let mut out = Vec::new();
    write_notification(&mut out, "n", None);
    assert_eq!(out, br#"{"jsonrpc":"2.0","method":"n"}"#);
    out.clear();
    write_notification(&mut out, "n/é", Some(b"{\n}"));
    assert_eq!(
        out,
        "{\"jsonrpc\":\"2.0\",\"method\":\"n/é\",\"params\":{ }}".as_bytes()
    );
    assert_eq!(
        RpcMessage::parse_from_client(out.into()).unwrap().method(),
        Some("n/é")
    );

    let mut out = Vec::new();
    write_result(&mut out, b"\"1\"", b"{\"a\":\r\n1}");
    assert_eq!(
        out,
        b"{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{\"a\":  1}}"
    );
    assert_eq!(
        to_text(RpcMessage::parse_from_client(out.into()).unwrap().id()),
        Some("\"1\"")
    );

    let mut out = Vec::new();
    write_error(&mut out, None, -32700, "not \"JSON\"", None);
    let want = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not \"JSON\""}}"#;
    assert_eq!(out, want.as_bytes());
    assert_eq!(
        RpcMessage::parse_from_client(out.into()).unwrap().kind(),
        MessageKind::Response
    );

    let mut out = Vec::new();
    write_error(&mut out, Some(b"5"), 1, "", Some(b"[1]"));
    let want = r#"{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"","data":[1]}}"#;
    assert_eq!(out, want.as_bytes());
}

/// The envelope as parsed by `serde_json`; null members count as absent.
#[derive(Deserialize)]
struct SeenMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<String>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

fn not_null(bytes: Option<&[u8]>) -> Option<&str> {
    to_text(bytes).filter(|&text| text != "null")
}

fn assert_agrees(input: &[u8], read: &Result<RpcMessage, MessageError>) {
    match read {
        Ok(message) => {
            let Ok(seen) = serde_json::from_slice::<SeenMessage<'_>>(input) else {
                // `serde_json` parses every key and refuses lone surrogates.
                assert!(memchr::memmem::find(input, b"\\u").is_some());
                return;
            };
            let raw = |value: Option<&RawValue>| value.map(|raw| raw.get().to_owned());
            assert_eq!(not_null(message.id()), raw(seen.id).as_deref());
            assert_eq!(message.method(), seen.method.as_deref());
            assert_eq!(not_null(message.params()), raw(seen.params).as_deref());
            assert_eq!(not_null(message.result()), raw(seen.result).as_deref());
            assert_eq!(not_null(message.error()), raw(seen.error).as_deref());
        }
        Err(MessageError::Json(JsonError::Depth { .. })) => {}
        Err(MessageError::Json(JsonError::DuplicateKey { .. })) => {
            assert_ne!(oracle::has_duplicate_keys(input), Some(false));
        }
        Err(MessageError::Json(_)) => assert!(!oracle::accepts(input)),
        Err(_) => assert!(oracle::accepts(input)),
    }
}

#[test]
fn malformed_messages_agree_with_oracle() {
    let corpus: Vec<_> = fuzz::JSON.iter().copied().take(5).collect();
    fuzz::for_each_mutation(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        assert_agrees(input, &RpcMessage::parse_from_client(bytes.clone()));
        assert_agrees(input, &RpcMessage::parse_from_server(bytes));
        if let Some(id) = find_refused_id(input) {
            let mut out = Vec::new();
            write_error(&mut out, Some(id), 0, "", None);
            assert!(RpcMessage::parse_from_client(out.into()).is_ok());
        }
    });
}
