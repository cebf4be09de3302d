//! Request and response bodies, of Bowline peers and minimal peers.

use std::time::Duration;

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_core::era::Era;
use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::log_level::LogLevel;
use bowline_core::trace::CallTrace;

use super::*;

fn parse_request(body: &str) -> Result<BrokerRequest, FrameError> {
    BrokerRequest::parse(&Bytes::copy_from_slice(body.as_bytes()))
}

fn parse_response(body: &str) -> Result<BrokerResponse, FrameError> {
    BrokerResponse::parse(&Bytes::copy_from_slice(body.as_bytes()))
}

fn quoted(text: &str) -> String {
    let mut out = Vec::new();
    bowline_wire::splice::write_string(&mut out, text);
    String::from_utf8(out).unwrap()
}

#[test]
fn arguments_keep_bytes_in_both_forms() {
    let exact = r#"{"n": 1.50e+3, "big":12345678901234567890123,"é":"\u00e9\n\ud83d\ude00" }"#;
    for arguments in [
        exact.to_owned(),
        quoted(exact),
        quoted(&format!(" {exact}\n")),
    ] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{arguments}}}"#);
        let Ok(BrokerRequest::Call { arguments, .. }) = parse_request(&body) else {
            panic!("no call: {body}");
        };
        assert_eq!(arguments, BrokerArguments::Object(exact.into()));
    }
    // A single level of quotes is removed.
    let twice = r#"{"a":"{\"b\":1}"}"#;
    let body = format!(
        r#"{{"op":"call","tool":"t","arguments":{}}}"#,
        quoted(twice)
    );
    let Ok(BrokerRequest::Call { arguments, .. }) = parse_request(&body) else {
        panic!("no call");
    };
    assert_eq!(arguments, BrokerArguments::Object(twice.into()));
}

#[test]
fn invalid_arguments_are_refused() {
    for arguments in [
        quoted("{"),
        quoted("{}x"),
        quoted("{'a':1}"),
        quoted(r#"{"a":1,"a":2}"#),
        quoted(r#"{"a":{"b":1,"\u0062":2}}"#),
        quoted("[]"),
        quoted("null"),
        quoted("7"),
        quoted(&quoted("{}")),
        r#""{\"a\":\ud800}""#.to_owned(),
        r#""\ud800""#.to_owned(),
        r#"{"a":{"b":1,"b":2}}"#.to_owned(),
        "[]".to_owned(),
        "7".to_owned(),
        "true".to_owned(),
    ] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{arguments}}}"#);
        let refused = Err(FrameError::Member("arguments"));
        assert_eq!(parse_request(&body), refused, "{arguments}");
    }
    for (body, why) in [
        ("null", FrameError::NoObject),
        ("{}", FrameError::Member("op")),
        (r#"{"op":"drop"}"#, FrameError::Member("op")),
        (r#"{"op":"call"}"#, FrameError::Member("tool")),
        (
            r#"{"op":"call","tool":"a","tool":"b"}"#,
            FrameError::NoObject,
        ),
        (
            r#"{"op":"call","tool":"a","params":{},"arguments":{}}"#,
            FrameError::Member("arguments"),
        ),
        (
            r#"{"op":"call","tool":"a","params":[]}"#,
            FrameError::Member("params"),
        ),
        (
            r#"{"op":"call","tool":"a","server":1}"#,
            FrameError::Member("server"),
        ),
    ] {
        assert_eq!(parse_request(body), Err(why), "{body}");
    }
}

fn arguments_with_context(context: CallerContext) -> BrokerArguments {
    let params = Bytes::from_static(br#"{"name":"t","arguments":{}}"#);
    BrokerArguments::ParamsWithContext(Box::new(CallWithContext { params, context }))
}

fn mcp_request(params: Option<Bytes>, context: CallerContext) -> BrokerRequest {
    BrokerRequest::Mcp {
        server: "s".into(),
        method: "resources/read".into(),
        params,
        context,
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn full_context() -> CallerContext {
    CallerContext {
        session: Some("n-1".into()),
        capabilities: ClientCapability::ALL.into_iter().fold(
            ClientCapabilities::default(),
            ClientCapabilities::with_capability,
        ),
        level: Some(LogLevel::Notice),
        era: Era::Modern,
        run: Some("run-1".into()),
        trace: CallTrace::parse(PARENT, Some("a=1")).map(Box::new),
    }
}

#[test]
fn unknown_context_is_skipped_unknown_era_refused() {
    let read = |mcp: &str| {
        let body = format!(r#"{{"op":"mcp","server":"s","method":"m","mcp":{mcp}}}"#);
        parse_request(&body).map(|asked| asked.context().cloned())
    };
    let known = read(r#"{"can":["telepathy","roots",1],"level":"loud","x":1}"#);
    let want = CallerContext {
        capabilities: ClientCapabilities::default().with_capability(ClientCapability::Roots),
        ..CallerContext::default()
    };
    assert_eq!(known, Ok(Some(want)));
    assert_eq!(read(r#"{"era":"next"}"#), Err(FrameError::Member("era")));
    assert_eq!(read("[]"), Err(FrameError::Member("mcp")));
    let long = format!(r#"{{"session":"{}"}}"#, "s".repeat(200));
    assert_eq!(read(&long), Err(FrameError::Member("session")));
    let long = format!(r#"{{"run":"{}"}}"#, "r".repeat(200));
    assert_eq!(read(&long), Err(FrameError::Member("run")));
    let no_trace = read(r#"{"traceparent":"00-0-0-00","tracestate":7}"#);
    assert_eq!(no_trace, Ok(Some(CallerContext::default())));
    let plain = parse_request(r#"{"op":"call","tool":"t","arguments":{}}"#).unwrap();
    assert_eq!(plain.context(), None);
}

#[test]
fn every_request_body_round_trips() {
    let call = |arguments| BrokerRequest::Call {
        tool: "t\"".into(),
        server: Some("s".into()),
        arguments,
    };
    for asked in [
        BrokerRequest::Manifest,
        call(BrokerArguments::None),
        call(BrokerArguments::Object(Bytes::from_static(b"{ }"))),
        call(BrokerArguments::Params(Bytes::from_static(
            br#"{"name":"t","_meta":{"k":1.0}}"#,
        ))),
        call(arguments_with_context(CallerContext::default())),
        call(arguments_with_context(full_context())),
        mcp_request(None, CallerContext::default()),
        mcp_request(
            Some(Bytes::from_static(br#"{"uri":"a://b"}"#)),
            full_context(),
        ),
    ] {
        assert_eq!(BrokerRequest::parse(&asked.to_bytes()), Ok(asked));
    }
    for nothing in ["null", "\"\"", "\" \\n\""] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{nothing}}}"#);
        let Ok(BrokerRequest::Call { arguments, .. }) = parse_request(&body) else {
            panic!("no call: {body}");
        };
        assert_eq!(arguments, BrokerArguments::None);
    }
    assert_eq!(
        call(BrokerArguments::Object(Bytes::from_static(b"{}"))).to_bytes(),
        &br#"{"op":"call","tool":"t\"","server":"s","arguments":{}}"#[..]
    );
}

fn failed_response(retry: RetryAdvice) -> BrokerResponse {
    BrokerResponse::Failed(FailureReport {
        class: FailureClass::Throttled,
        execution: ExecutionStatus::NotStarted,
        retry,
        origin: FailureOrigin::Policy,
        code: "too_fast".into(),
        reason: "slow \"down\"".into(),
    })
}

pub(super) fn all_responses() -> Vec<BrokerResponse> {
    vec![
        BrokerResponse::Output {
            result: Bytes::from_static(
                br#"{"content":[{"type":"text","text":"a"}, {"type":"text","text":"b"}],"isError":true,"_meta":{"n":1.50}}"#,
            ),
            from_journal: true,
            era: Era::Legacy,
        },
        BrokerResponse::Output {
            result: Bytes::from_static(br#"{"content":[],"structuredContent":{"n":1}}"#),
            from_journal: false,
            era: Era::Legacy,
        },
        BrokerResponse::RpcError {
            error: Bytes::from_static(br#"{"code":-32602,"message":"bad","data":[1e0]}"#),
            era: Era::Legacy,
        },
        failed_response(RetryAdvice::Never),
        failed_response(RetryAdvice::Safe),
        failed_response(RetryAdvice::After(Duration::from_millis(1_500))),
        BrokerResponse::Manifest {
            items: Vec::new(),
            revision: 0,
        },
        BrokerResponse::Manifest {
            items: vec![
                ManifestItem {
                    name: "files__read".into(),
                    server: Some("files".into()),
                    tool: Some("read".into()),
                    is_repeatable: true,
                    definition: Bytes::from_static(
                        br#"{"name":"files__read","description":"r","inputSchema":{"type":"object"},"x":1}"#,
                    ),
                },
                ManifestItem {
                    name: "b".into(),
                    server: None,
                    tool: None,
                    is_repeatable: false,
                    definition: Bytes::from_static(br#"{"name":"b"}"#),
                },
            ],
            revision: 7,
        },
        BrokerResponse::Output {
            result: Bytes::from_static(br#"{"content":[],"resultType":"complete"}"#),
            from_journal: true,
            era: Era::Modern,
        },
        BrokerResponse::RpcError {
            error: Bytes::from_static(br#"{"code":-32022,"message":"old"}"#),
            era: Era::Modern,
        },
    ]
}

#[test]
fn every_response_body_round_trips_in_both_forms() {
    for answer in all_responses() {
        for said in [ResultForm::Whole, ResultForm::Brief] {
            let body = answer.to_bytes(said);
            assert!(serde_json::from_slice::<serde_json::Value>(&body).is_ok());
            assert_eq!(
                BrokerResponse::parse(&body).as_ref(),
                Ok(&answer),
                "{body:?}"
            );
        }
    }
}

#[test]
fn responses_use_common_member_names() {
    let whole: Vec<String> = all_responses()
        .iter()
        .map(|answer| String::from_utf8(answer.to_bytes(ResultForm::Whole).to_vec()).unwrap())
        .collect();
    assert!(whole[0].starts_with(r#"{"result":{"success":false,"result":"a\nb","output":{"#));
    assert!(whole[1].starts_with(r#"{"result":{"success":true,"result":"{\"content\":[],"#));
    assert_eq!(
        whole[2],
        r#"{"error":"bad","failure":{"class":"protocol_error","execution":"completed","retry":"never","origin":"upstream","rpc":{"code":-32602,"message":"bad","data":[1e0]}}}"#
    );
    assert_eq!(
        whole[5],
        r#"{"error":"slow \"down\"","failure":{"class":"throttled","execution":"not_started","retry":"after","retry_after_ms":1500,"origin":"policy","code":"too_fast"}}"#
    );
    assert_eq!(
        whole[7],
        r#"{"manifest":[{"type":"function","function":{"name":"files__read","description":"r","parameters":{"type":"object"}},"server":"files","tool":"read","repeatable":true,"definition":{"name":"files__read","description":"r","inputSchema":{"type":"object"},"x":1}},{"type":"function","function":{"name":"b","description":"","parameters":{"type":"object"}},"repeatable":false,"definition":{"name":"b"}}],"revision":7}"#
    );
    let brief = all_responses()[1].to_bytes(ResultForm::Brief);
    assert_eq!(
        brief,
        &br#"{"output":{"content":[],"structuredContent":{"n":1}}}"#[..]
    );
}

#[test]
fn largest_result_fits_frame_in_both_forms() {
    let text = "x".repeat(8 * 1024 * 1024 - 100);
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    let answer = BrokerResponse::Output {
        result: result.into(),
        from_journal: true,
        era: Era::Legacy,
    };
    for said in [ResultForm::Whole, ResultForm::Brief] {
        let letter = MailboxMessage::new(&MessageDraft {
            id: "1",
            kind: REPLY_KIND,
            body: MessageBody::Json(&answer.to_bytes(said)),
            correlation_id: Some("1"),
            ttl_ms: None,
            created_at_ms: 0,
        });
        let frame = BrokerFrame::Message(letter.with_sender(sender())).to_bytes();
        assert!(frame.len() <= FRAME_BYTES_MAX);
        let Ok(BrokerFrame::Message(came)) = BrokerFrame::parse(&frame) else {
            panic!("no message");
        };
        assert_eq!(BrokerResponse::parse(&came.body).as_ref(), Ok(&answer));
    }
}

#[test]
fn live_response_frame_matches_two_step_encoding() {
    for answer in all_responses() {
        let two = BrokerFrame::Response {
            id: "1\"".into(),
            body: answer.to_bytes(ResultForm::Brief),
        };
        assert_eq!(answer.to_response_frame("1\""), two.to_bytes());
    }
}

#[test]
fn minimal_reply_keeps_failure_apart_from_result() {
    for (body, result) in [
        (
            r#"{"result":{"success":true,"result":"3 \"x\""}}"#,
            r#"{"content":[{"type":"text","text":"3 \"x\""}]}"#,
        ),
        (
            r#"{"result":{"success":false,"result":"no"},"error":null,"manifest":null}"#,
            r#"{"content":[{"type":"text","text":"no"}],"isError":true}"#,
        ),
    ] {
        let want = BrokerResponse::Output {
            result: result.into(),
            from_journal: false,
            era: Era::Legacy,
        };
        assert_eq!(parse_response(body), Ok(want));
    }
    let Ok(BrokerResponse::Failed(failure)) =
        parse_response(r#"{"error":"role r may not call t"}"#)
    else {
        panic!("no failure");
    };
    assert_eq!(&*failure.reason, "role r may not call t");
    assert_eq!(failure.execution, ExecutionStatus::Unknown);
    assert_eq!(failure.retry, RetryAdvice::Never);
    assert_eq!(failure.origin, FailureOrigin::Broker);
    let manifest = r#"{"manifest":[{"type":"function","function":{"name":"t","description":"d",
        "parameters":{"type":"object","x":1.0}}},{"function":{"name":"u"}}]}"#;
    let Ok(BrokerResponse::Manifest { items, revision: 0 }) = parse_response(manifest) else {
        panic!("no manifest");
    };
    assert_eq!(&*items[0].name, "t");
    assert!(!items[0].is_repeatable);
    assert_eq!(
        items[0].definition,
        r#"{"name":"t","description":"d","inputSchema":{"type":"object","x":1.0}}"#.as_bytes()
    );
    assert_eq!(
        items[1].definition,
        r#"{"name":"u","inputSchema":{"type":"object"}}"#.as_bytes()
    );
}

#[test]
fn unknown_failure_words_are_never_retryable() {
    let body = r#"{"error":"e","failure":{"class":"Cosmic","execution":"maybe","retry":"soon",
        "origin":"tool","code":"new","more":[1]}}"#;
    let Ok(BrokerResponse::Failed(failure)) = parse_response(body) else {
        panic!("no failure");
    };
    assert_eq!(failure.class, FailureClass::ProtocolError);
    assert_eq!(failure.execution, ExecutionStatus::Unknown);
    assert_eq!(failure.retry, RetryAdvice::Never);
    assert_eq!(failure.origin, FailureOrigin::Broker);
    assert_eq!(&*failure.code, "new");
}

#[test]
fn empty_body_is_refused() {
    for (body, why) in [
        ("{}", FrameError::Member("result")),
        ("[]", FrameError::Member("body")),
        (r#"{"manifest":{}}"#, FrameError::Member("manifest")),
        (r#"{"manifest":[1]}"#, FrameError::Member("manifest")),
        (
            r#"{"manifest":[{"type":"function"}]}"#,
            FrameError::Member("name"),
        ),
        (
            r#"{"manifest":[{"name":"a"}]}"#,
            FrameError::Member("definition"),
        ),
        (
            r#"{"result":{"result":"x"}}"#,
            FrameError::Member("success"),
        ),
        (r#"{"result":"x"}"#, FrameError::Member("result")),
        (r#"{"output":[]}"#, FrameError::Member("output")),
        (
            r#"{"output":{},"output":{"isError":true}}"#,
            FrameError::Member("output"),
        ),
        (r#"{"error":7}"#, FrameError::Member("error")),
    ] {
        assert_eq!(parse_response(body), Err(why), "{body}");
    }
}

#[test]
fn sec_60_broker_bodies_have_one_spelling() {
    let read = |text: &'static str| BrokerRequest::parse(&Bytes::from_static(text.as_bytes()));
    for text in [
        r#"{"op":"call","tool":"a","Tool":"b"}"#,
        r#"{"op":"call","tool":"a","\u0041rguments":{}}"#,
        r#"{"OP":"manifest"}"#,
        r#"{"op":"call","tool":"a","params":{"name":"a","Name":"b"}}"#,
        r#"{"op":"call","tool":"a","params":{"name":"a","argument\u017f":{}}}"#,
        r#"{"op":"mcp","server":"s","method":"prompts/get","params":{"Name":"b"}}"#,
        r#"{"op":"mcp","server":"s","method":"ping","mcp":{"Session":"x"}}"#,
    ] {
        assert!(read(text).is_err(), "{text}");
    }
    assert!(read(r#"{"op":"call","tool":"a","arguments":{"A":1,"a":2},"x":1,"X":2}"#).is_ok());
    let frame = br#"{"kind":"deliver","Kind":"hello","id":"m"}"#;
    assert!(BrokerFrame::parse(&Bytes::from_static(frame)).is_err());
}

#[test]
fn text_arguments_read_back_with_their_context() {
    let call = |context: CallerContext| BrokerRequest::Call {
        tool: "t".into(),
        server: None,
        arguments: BrokerArguments::Text(Box::new(TextArguments {
            json: Bytes::from_static(br#"{"a":1.0}"#),
            context,
        })),
    };
    let plain = call(CallerContext::default()).to_bytes();
    assert_eq!(
        plain,
        r#"{"op":"call","tool":"t","arguments":"{\"a\":1.0}"}"#
    );
    let Ok(BrokerRequest::Call { arguments, .. }) = BrokerRequest::parse(&plain) else {
        panic!("no call");
    };
    assert_eq!(
        arguments,
        BrokerArguments::Object(Bytes::from_static(br#"{"a":1.0}"#))
    );
    let read = BrokerRequest::parse(&call(full_context()).to_bytes()).unwrap();
    assert_eq!(read.context(), Some(&full_context()));
    let BrokerRequest::Call {
        arguments: BrokerArguments::ParamsWithContext(told),
        ..
    } = read
    else {
        panic!("nothing is said of who asks");
    };
    assert_eq!(told.params, r#"{"name":"t","arguments":{"a":1.0}}"#);
}
