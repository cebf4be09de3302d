//! Messages in the reference encoding, and invalid messages.

use bowline_core::error::ExecutionStatus;

use super::*;
use crate::frames::StreamFaultCode;

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn params(message: &Bytes) -> Bytes {
    match ExecMessage::parse(message).unwrap() {
        ExecMessage::Request { params, .. } | ExecMessage::Notification { params, .. } => params,
        ExecMessage::Result { result, .. } => result,
        other @ ExecMessage::Error { .. } => panic!("{other:?}"),
    }
}

#[test]
fn requests_match_reference_bytes() {
    let first = InitializeParams {
        client_name: "bowline".into(),
        resume_session: None,
    };
    assert_eq!(
        text(&write_initialize(1, &first)),
        r#"{"id":1,"method":"initialize","params":{"clientName":"bowline","resumeSessionId":null}}"#
    );
    assert_eq!(
        text(&write_initialized()),
        r#"{"method":"initialized","params":{}}"#
    );
    let headers = [ExecHeaderRef {
        name: "x-a",
        value: "Bearer ",
        secret_name: Some("TOKEN"),
    }];
    let asked = ExecHttpRequestRef {
        method: "POST",
        url: "http://a.example/?\"",
        headers: &headers,
        body: Some(b"hey"),
        timeout_ms: Some(5),
        redirects: RedirectPolicy::Stop,
        request_id: "http-1",
        is_streamed: true,
    };
    assert_eq!(
        text(&asked.to_bytes(2)),
        concat!(
            r#"{"id":2,"method":"http/request","params":{"method":"POST","#,
            r#""url":"http://a.example/?\"","headers":[{"name":"x-a","value":"Bearer ","#,
            r#""valueEnvVar":"TOKEN"}],"bodyBase64":"aGV5","timeoutMs":5,"#,
            r#""redirectPolicy":"stop","requestId":"http-1","streamResponse":true}}"#
        )
    );
    assert_eq!(
        text(&write_delta("http-1", 7, b"part", None)),
        concat!(
            r#"{"method":"http/request/bodyDelta","params":{"requestId":"http-1","seq":7,"#,
            r#""deltaBase64":"cGFydA==","done":false,"error":null}}"#
        )
    );
    assert_eq!(
        text(&write_delta("http-1", 8, b"", Some(Err("cut")))),
        concat!(
            r#"{"method":"http/request/bodyDelta","params":{"requestId":"http-1","seq":8,"#,
            r#""deltaBase64":"","done":true,"error":"cut"}}"#
        )
    );
}

#[test]
fn responses_match_reference_bytes() {
    let headers = [ExecHeaderRef {
        name: "x-a",
        value: "1",
        secret_name: None,
    }];
    assert_eq!(
        text(&ExecHttpResponse::encode(
            &ExecRequestId::Text("i".into()),
            200,
            &headers,
            b"ok"
        )),
        concat!(
            r#"{"id":"i","result":{"status":200,"headers":[{"name":"x-a","value":"1"}],"#,
            r#""bodyBase64":"b2s="}}"#
        )
    );
    let refusal = ExecRefusal {
        code: code::METHOD,
        message: "no".into(),
        stream_fault: None,
    };
    assert_eq!(
        text(&write_refusal(&ExecRequestId::Number(3), &refusal)),
        r#"{"error":{"code":-32601,"message":"no"},"id":3}"#
    );
}

#[test]
fn messages_round_trip() {
    let first = InitializeParams {
        client_name: "x".into(),
        resume_session: Some("s".into()),
    };
    let message = write_initialize(1, &first);
    assert_eq!(InitializeParams::parse(&params(&message)), Ok(first));
    let message = write_session(&ExecRequestId::Number(1), "s-1");
    assert_eq!(parse_session(&params(&message)), Ok(("s-1".into(), None)));
    let told =
        Bytes::from_static(br#"{"sessionId":"s","environmentInfo":{"executorVersion":"9"}}"#);
    assert_eq!(parse_session(&told), Ok(("s".into(), Some("9".into()))));
    let message = write_delta("http-9", 3, b"\0\xff\xfe", Some(Ok(())));
    let params = params(&message);
    let delta = BodyDelta::parse(&params).unwrap();
    assert_eq!((&*delta.request_id, delta.seq), ("http-9", 3));
    assert_eq!((delta.is_done, &delta.error), (true, &None));
    assert_eq!((delta.len(), delta.is_empty()), (3, false));
    assert_eq!(delta.decode().unwrap(), &b"\0\xff\xfe"[..]);
    let refusal = ExecRefusal {
        code: code::INTERNAL,
        message: "http/request failed: refused".into(),
        stream_fault: Some(StreamFault {
            code: StreamFaultCode::Unreachable,
            execution: ExecutionStatus::NotStarted,
            reason: "refused".into(),
        }),
    };
    let id = ExecRequestId::Number(-4);
    let message = write_refusal(&id, &refusal);
    assert_eq!(
        ExecMessage::parse(&message),
        Ok(ExecMessage::Error { id, refusal })
    );
}

#[test]
fn request_defaults_apply() {
    let least = Bytes::from_static(br#"{"method":"GET","url":"http://a/","requestId":"r"}"#);
    let asked = ExecHttpRequest::parse(&least).unwrap();
    assert_eq!(asked.headers, []);
    assert_eq!((asked.body, asked.timeout_ms), (None, None));
    assert_eq!(asked.redirects, RedirectPolicy::Follow);
    assert!(!asked.is_streamed);
    for (wrong, name) in [
        (r#"{"method":"GET","url":"http://a/"}"#, "requestId"),
        (
            r#"{"method":"GET","url":"u","requestId":"r","bodyBase64":"YQ"}"#,
            "bodyBase64",
        ),
        (
            r#"{"method":"GET","url":"u","requestId":"r","bodyBase64":"!!!!"}"#,
            "bodyBase64",
        ),
        (
            r#"{"method":"GET","url":"u","requestId":"r","redirectPolicy":"x"}"#,
            "redirectPolicy",
        ),
        (
            r#"{"method":"GET","url":"u","requestId":"r","headers":[{"name":"a"}]}"#,
            "value",
        ),
    ] {
        let wrong = Bytes::from(wrong);
        assert_eq!(
            ExecHttpRequest::parse(&wrong),
            Err(FrameError::Member(name))
        );
    }
}

#[test]
fn invalid_messages_are_refused() {
    for wrong in [
        "{bad",
        "[1]",
        "{}",
        "\"x\"",
        r#"{"id":null,"method":"x"}"#,
        r#"{"id":1.5,"method":"x"}"#,
        r#"{"id":1,"method":2}"#,
        r#"{"id":1}"#,
        r#"{"id":1,"error":{}}"#,
        r#"{"result":1}"#,
        r#"{"method":"a","method":"b"}"#,
        "",
    ] {
        assert!(ExecMessage::parse(&Bytes::from(wrong)).is_err(), "{wrong}");
    }
    let answer = write_malformed(FrameError::NoObject);
    assert!(text(&answer).ends_with(r#","id":-1}"#));
}

#[test]
fn oversized_delta_is_refused_before_decoding() {
    let message = write_delta("http-1", 1, &vec![b'x'; DELTA_BYTES_MAX], None);
    assert_eq!(
        BodyDelta::parse(&params(&message)).unwrap().len(),
        DELTA_BYTES_MAX
    );
    let message = write_delta("http-1", 1, &vec![b'x'; DELTA_BYTES_MAX + 1], None);
    let refused = BodyDelta::parse(&params(&message)).map(|_| ());
    assert_eq!(refused, Err(FrameError::Member("deltaBase64")));
    // As base64, a longer body can have the same length.
    for (bytes, fits) in [(BODY_BYTES_MAX, true), (BODY_BYTES_MAX + 1, false)] {
        let message =
            ExecHttpResponse::encode(&ExecRequestId::Number(1), 200, &[], &vec![b'x'; bytes]);
        assert_eq!(ExecHttpResponse::parse(&params(&message)).is_ok(), fits);
    }
}

#[test]
fn too_many_values_are_refused() {
    for (json, want) in [
        ("1", 1),
        ("[]", 1),
        ("[ ]", 1),
        ("{ }", 1),
        ("[1]", 2),
        (r#"{"a":1,"b":[2,"[,]\"",{}]}"#, 6),
        (r#"[[],{"a":[]},"\\"]"#, 5),
    ] {
        assert_eq!(count_nodes(json.as_bytes()), want, "{json}");
    }
    let of = |count: usize| {
        let list = "0,".repeat(count - 1) + "0";
        Bytes::from(format!(r#"{{"method":"x","params":[{list}]}}"#))
    };
    // The object, the word and the array count as values.
    assert!(ExecMessage::parse(&of(NODES_MAX - 3)).is_ok());
    let refused = ExecMessage::parse(&of(NODES_MAX - 2));
    assert_eq!(refused, Err(FrameError::TooManyValues));
}

#[test]
fn random_bytes_never_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    let messages = [
        write_delta("http-1", 1, b"some bytes", Some(Err("why"))),
        write_session(&ExecRequestId::Number(4), "session"),
        ExecHttpResponse::encode(&ExecRequestId::Number(4), 200, &[], b"body"),
        write_malformed(FrameError::NoKind),
    ];
    for _ in 0..20_000 {
        let at = random.usize(..messages.len());
        let mut message = messages[at].to_vec();
        for _ in 0..random.usize(1..4) {
            let place = random.usize(..message.len());
            message[place] = random.u8(..);
        }
        let message = Bytes::from(message);
        if let Ok(ExecMessage::Notification { params, .. }) = ExecMessage::parse(&message)
            && let Ok(delta) = BodyDelta::parse(&params)
        {
            let _ = delta.decode();
        }
        let _ = ExecHttpResponse::parse(&message);
        let _ = ExecHttpRequest::parse(&message);
    }
}
