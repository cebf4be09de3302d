//! Tests of messages, with `serde_json` as the oracle.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;
use crate::splice::{Edit, Edited};
use crate::testing::{fuzz, oracle};

fn parse(text: &str) -> Result<Message, Refusal> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()))
}

fn parse_peer(text: &str) -> Result<Message, Refusal> {
    Message::parse_peer(Bytes::copy_from_slice(text.as_bytes()))
}

fn shown(bytes: Option<&[u8]>) -> Option<&str> {
    bytes.map(|bytes| std::str::from_utf8(bytes).unwrap())
}

#[test]
fn a_request_shows_what_its_envelope_holds() {
    let text = "{ \"jsonrpc\":\"2.0\", \"id\" : 7 ,\n\"method\":\"tools/call\",\
                \"params\" : {\"name\":\"a\", \"x\":1e400} , \"extra\":[1] }";
    let message = parse(text).unwrap();
    assert_eq!(message.kind(), Kind::Request);
    assert_eq!(shown(message.id()), Some("7"));
    assert_eq!(message.method(), Some("tools/call"));
    assert_eq!(
        shown(message.params()),
        Some("{\"name\":\"a\", \"x\":1e400}")
    );
    assert_eq!(
        message.params_span().unwrap().of(text.as_bytes()),
        message.params().unwrap()
    );
    assert_eq!(message.id_span().unwrap().of(text.as_bytes()), b"7");
    assert_eq!((message.result(), message.error()), (None, None));
    assert_eq!((message.result_span(), message.error_span()), (None, None));
    assert_eq!(message.bytes(), text.as_bytes());
    assert_eq!(message.into_bytes(), text.as_bytes());
}

#[test]
fn the_method_decides_first_what_a_message_is() {
    for (rest, kind) in [
        (r#""id":1,"method":"a""#, Kind::Request),
        (r#""id":1,"method":"a","result":1"#, Kind::Request),
        (r#""id":1,"method":"""#, Kind::Request),
        (r#""method":"a""#, Kind::Notification),
        (r#""method":"a","error":{}"#, Kind::Notification),
        (r#""id":1,"result":{}"#, Kind::Answer),
        (r#""id":1,"result":null"#, Kind::Answer),
        (r#""id":1,"error":{"code":1,"message":""}"#, Kind::Answer),
        (r#""id":null,"error":{}"#, Kind::Answer),
        (r#""error":{}"#, Kind::Answer),
    ] {
        let text = format!("{{\"jsonrpc\":\"2.0\",{rest}}}");
        assert_eq!(parse(&text).unwrap().kind(), kind, "{text}");
        assert_eq!(parse_peer(&text).unwrap().kind(), kind, "{text}");
    }
}

#[test]
fn ids_stay_as_they_were_written() {
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
        let message = parse(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#)).unwrap();
        assert_eq!(shown(message.id()), Some(id));
        let message = parse_peer(&format!(r#"{{"result":[],"id": {id} }}"#)).unwrap();
        assert_eq!(shown(message.id()), Some(id));
    }
}

#[test]
fn ids_of_other_kinds_are_refused() {
    for id in [
        "1.0", "1.5", "1e3", "1E3", "-0.0", "null", "{}", "[]", "[1]", "true", "false",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"a"}}"#);
        assert_eq!(parse(&text).unwrap_err(), Refusal::BadId, "{text}");
        assert_eq!(parse_peer(&text).unwrap_err(), Refusal::BadId, "{text}");
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        assert_eq!(parse(&text).unwrap_err(), Refusal::BadId, "{text}");
    }
}

#[test]
fn only_an_error_may_answer_without_an_id() {
    let error = parse(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700}}"#).unwrap();
    assert_eq!((error.id(), error.id_span()), (None, None));
    assert_eq!(shown(error.error()), Some(r#"{"code":-32700}"#));
    let bad = parse(r#"{"jsonrpc":"2.0","id":1.5,"error":{}}"#);
    assert_eq!(bad.unwrap_err(), Refusal::BadId);
    let absent = parse(r#"{"jsonrpc":"2.0","result":{}}"#);
    assert_eq!(absent.unwrap_err(), Refusal::BadId);
}

#[test]
fn a_null_result_is_a_result() {
    let message = parse(r#"{"jsonrpc":"2.0","id":1,"result":null}"#).unwrap();
    assert_eq!(shown(message.result()), Some("null"));
    assert_eq!(message.error(), None);
}

#[test]
fn what_is_no_message_is_refused_by_its_reason() {
    for (text, refusal) in [
        ("[]", Refusal::Batch),
        (
            r#" [{"jsonrpc":"2.0","id":1,"method":"a"}]"#,
            Refusal::Batch,
        ),
        ("1", Refusal::NotObject),
        ("\"{}\"", Refusal::NotObject),
        ("null", Refusal::NotObject),
        ("{}", Refusal::BadVersion),
        (r#"{"id":1,"method":"a"}"#, Refusal::BadVersion),
        (
            r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
            Refusal::BadVersion,
        ),
        (
            r#"{"jsonrpc":2.0,"id":1,"method":"a"}"#,
            Refusal::BadVersion,
        ),
        (
            r#"{"jsonrpc":null,"id":1,"method":"a"}"#,
            Refusal::BadVersion,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"method":1}"#, Refusal::BadMethod),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":null,"result":1}"#,
            Refusal::BadMethod,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":{}}"#,
            Refusal::BadMethod,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"\ud800"}"#,
            Refusal::BadMethod,
        ),
        (r#"{"jsonrpc":"2.0","id":1}"#, Refusal::Shape),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
            Refusal::Shape,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":null}"#,
            Refusal::Shape,
        ),
        (r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#, Refusal::Shape),
        (r#"{"jsonrpc":"2.0","id":1,"error":null}"#, Refusal::Shape),
    ] {
        assert_eq!(parse(text).unwrap_err(), refusal, "{text}");
        assert_eq!(refusal.code(), -32600);
    }
}

#[test]
fn what_is_no_json_is_refused_with_its_fault() {
    for (text, fault) in [
        ("", Fault::Empty),
        ("{", Fault::Syntax { at: 1 }),
        ("[1,", Fault::Syntax { at: 3 }),
        ("\u{feff}{}", Fault::Syntax { at: 0 }),
        ("{\"a\":\"\0\"}", Fault::Syntax { at: 6 }),
        (r#"{"a":NaN}"#, Fault::Syntax { at: 5 }),
        ("{}\n{}", Fault::Trailing { at: 3 }),
        (
            r#"{"method":"a","method":"b"}"#,
            Fault::DuplicateKey { at: 14 },
        ),
        (r#"{"id":1,"i\u0064":2}"#, Fault::DuplicateKey { at: 8 }),
    ] {
        assert_eq!(parse(text).unwrap_err(), Refusal::Json(fault), "{text:?}");
        assert_eq!(
            parse_peer(text).unwrap_err(),
            Refusal::Json(fault),
            "{text:?}"
        );
        assert_eq!(Refusal::Json(fault).code(), -32700);
    }
}

#[test]
fn a_caller_may_not_repeat_a_key_anywhere_and_a_server_only_not_outside() {
    let text = r#"{"jsonrpc":"2.0","method":"a","params":{"a":1,"\u0061":2}}"#;
    let fault = Fault::DuplicateKey { at: 46 };
    assert_eq!(parse(text).unwrap_err(), Refusal::Json(fault));
    assert_eq!(parse_peer(text).unwrap().method(), Some("a"));
}

#[test]
fn a_server_may_leave_out_the_version_but_not_lie() {
    assert!(parse_peer(r#"{"id":1,"result":{}}"#).is_ok());
    let other = parse_peer(r#"{"jsonrpc":"1.0","id":1,"result":{}}"#);
    assert_eq!(other.unwrap_err(), Refusal::BadVersion);
    assert!(parse(r#"{"jsonrpc":"2\u002e0","method":"a"}"#).is_ok());
}

#[test]
fn of_result_and_error_of_a_server_the_null_one_does_not_count() {
    let both = |result: &str, error: &str| {
        let text = format!(r#"{{"id":1,"result":{result},"error":{error}}}"#);
        parse_peer(&text).map(|message| {
            let own = |bytes: Option<&[u8]>| shown(bytes).map(str::to_owned);
            (own(message.result()), own(message.error()))
        })
    };
    assert_eq!(both("{}", "null"), Ok((Some("{}".into()), None)));
    assert_eq!(both("null", "null"), Ok((Some("null".into()), None)));
    assert_eq!(both("null", "{}"), Ok((None, Some("{}".into()))));
    assert_eq!(both("{}", "{}"), Err(Refusal::Shape));
    let text = parse_peer(r#"{"id":1,"error":"went wrong"}"#).unwrap();
    assert_eq!(shown(text.error()), Some("\"went wrong\""));
    let neither = parse_peer(r#"{"id":1,"error":null}"#);
    assert_eq!(neither.unwrap_err(), Refusal::Shape);
}

#[test]
fn escapes_in_the_envelope_are_resolved() {
    let text = r#"{"jsonrpc":"2.0","\u0069d":1,"\u006dethod":"tools\/c\u0061ll"}"#;
    let message = parse(text).unwrap();
    assert_eq!(message.method(), Some("tools/call"));
    assert_eq!(shown(message.id()), Some("1"));
}

#[test]
fn a_message_may_be_64_levels_deep_and_no_more() {
    let text = |depth: usize| {
        let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
        format!(r#"{{"jsonrpc":"2.0","method":"a","params":{open}{close}}}"#)
    };
    assert!(parse(&text(64)).is_ok());
    let deep = parse(&text(65)).unwrap_err();
    assert!(matches!(deep, Refusal::Json(Fault::Depth { .. })));
    let deep = parse_peer(&text(100_000)).unwrap_err();
    assert!(matches!(deep, Refusal::Json(Fault::Depth { .. })));
}

#[test]
fn the_id_of_a_refused_message_is_told_when_it_is_sure() {
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
        assert_eq!(shown(refused_id(text.as_bytes())), id, "{text:.80}");
    }
    assert_eq!(refused_id(b"{\"id\":\"\xff\"}"), None);
}

#[test]
fn a_written_request_is_one_line_with_its_edits() {
    let mut out = b"before\n".to_vec();
    let source = b"{\n\t\"name\": \"a\\n\",\r\n \"x\": 1 }";
    let edits = [Edit {
        at: Span { start: 11, end: 16 },
        with: b"\"b\\n\"\n",
    }];
    // What an edit puts in is JSON too, so that its line breaks are flattened alike.
    write_request(
        &mut out,
        u64::MAX,
        "a\"\n",
        Some(Edited {
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
fn written_messages_read_back() {
    let mut out = Vec::new();
    write_notification(&mut out, "n", None);
    assert_eq!(out, br#"{"jsonrpc":"2.0","method":"n"}"#);
    out.clear();
    write_notification(&mut out, "n/é", Some(b"{\n}"));
    assert_eq!(
        out,
        "{\"jsonrpc\":\"2.0\",\"method\":\"n/é\",\"params\":{ }}".as_bytes()
    );
    assert_eq!(Message::parse(out.into()).unwrap().method(), Some("n/é"));

    let mut out = Vec::new();
    write_result(&mut out, b"\"1\"", b"{\"a\":\r\n1}");
    assert_eq!(
        out,
        b"{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{\"a\":  1}}"
    );
    assert_eq!(
        shown(Message::parse(out.into()).unwrap().id()),
        Some("\"1\"")
    );

    let mut out = Vec::new();
    write_error(&mut out, None, -32700, "not \"JSON\"", None);
    let want = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not \"JSON\""}}"#;
    assert_eq!(out, want.as_bytes());
    assert_eq!(Message::parse(out.into()).unwrap().kind(), Kind::Answer);

    let mut out = Vec::new();
    write_error(&mut out, Some(b"5"), 1, "", Some(b"[1]"));
    let want = r#"{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"","data":[1]}}"#;
    assert_eq!(out, want.as_bytes());
}

/// The envelope as `serde_json` reads it; null members read as absent.
#[derive(Deserialize)]
struct Seen<'a> {
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
    shown(bytes).filter(|&text| text != "null")
}

fn agrees(input: &[u8], read: &Result<Message, Refusal>) {
    match read {
        Ok(message) => {
            let Ok(seen) = serde_json::from_slice::<Seen<'_>>(input) else {
                // `serde_json` reads every key and refuses one with a lone surrogate.
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
        Err(Refusal::Json(Fault::Depth { .. })) => {}
        Err(Refusal::Json(Fault::DuplicateKey { .. })) => {
            assert_ne!(oracle::repeats(input), Some(false));
        }
        Err(Refusal::Json(_)) => assert!(!oracle::accepts(input)),
        Err(_) => assert!(oracle::accepts(input)),
    }
}

#[test]
fn ten_thousand_malformed_inputs_never_panic_and_are_judged_as_by_the_oracle() {
    let corpus: Vec<_> = fuzz::JSON.iter().copied().take(5).collect();
    fuzz::each(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        agrees(input, &Message::parse(bytes.clone()));
        agrees(input, &Message::parse_peer(bytes));
        if let Some(id) = refused_id(input) {
            let mut out = Vec::new();
            write_error(&mut out, Some(id), 0, "", None);
            assert!(Message::parse(out.into()).is_ok());
        }
    });
}
