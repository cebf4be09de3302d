//! Messages survive the wire as the reference writes them, and what is none is told.

use bowline_core::error::Execution;

use super::*;
use crate::executor::FaultCode;

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn params(message: &Bytes) -> Bytes {
    match Said::read(message).unwrap() {
        Said::Request { params, .. } | Said::Notice { params, .. } => params,
        Said::Result { result, .. } => result,
        other @ Said::Refused { .. } => panic!("{other:?}"),
    }
}

#[test]
fn messages_have_the_form_of_the_reference_to_the_byte() {
    let first = Initialize {
        client: "bowline".into(),
        resume: None,
    };
    assert_eq!(
        text(&initialize(1, &first)),
        r#"{"id":1,"method":"initialize","params":{"clientName":"bowline","resumeSessionId":null}}"#
    );
    assert_eq!(
        text(&initialized()),
        r#"{"method":"initialized","params":{}}"#
    );
    let headers = [HeaderRef {
        name: "x-a",
        value: "Bearer ",
        secret: Some("TOKEN"),
    }];
    let asked = AskedRef {
        method: "POST",
        url: "http://a.example/?\"",
        headers: &headers,
        body: Some(b"hey"),
        timeout_ms: Some(5),
        redirects: Redirects::Stop,
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
fn answers_have_the_form_of_the_reference_to_the_byte() {
    let headers = [HeaderRef {
        name: "x-a",
        value: "1",
        secret: None,
    }];
    assert_eq!(
        text(&Answered::write(
            &Id::Text("i".into()),
            200,
            &headers,
            b"ok"
        )),
        concat!(
            r#"{"id":"i","result":{"status":200,"headers":[{"name":"x-a","value":"1"}],"#,
            r#""bodyBase64":"b2s="}}"#
        )
    );
    let refusal = Refusal {
        code: code::METHOD,
        message: "no".into(),
        fault: None,
    };
    assert_eq!(
        text(&refused(&Id::Number(3), &refusal)),
        r#"{"error":{"code":-32601,"message":"no"},"id":3}"#
    );
}

#[test]
fn messages_are_read_as_they_were_written() {
    let first = Initialize {
        client: "x".into(),
        resume: Some("s".into()),
    };
    let message = initialize(1, &first);
    assert_eq!(Initialize::read(&params(&message)), Ok(first));
    let message = opened(&Id::Number(1), "s-1");
    assert_eq!(session(&params(&message)), Ok(("s-1".into(), None)));
    let told =
        Bytes::from_static(br#"{"sessionId":"s","environmentInfo":{"executorVersion":"9"}}"#);
    assert_eq!(session(&told), Ok(("s".into(), Some("9".into()))));
    let message = write_delta("http-9", 3, b"\0\xff\xfe", Some(Ok(())));
    let params = params(&message);
    let delta = Delta::read(&params).unwrap();
    assert_eq!((&*delta.request_id, delta.seq), ("http-9", 3));
    assert_eq!((delta.is_done, &delta.error), (true, &None));
    assert_eq!((delta.len(), delta.is_empty()), (3, false));
    assert_eq!(delta.decode().unwrap(), &b"\0\xff\xfe"[..]);
    let refusal = Refusal {
        code: code::INTERNAL,
        message: "http/request failed: refused".into(),
        fault: Some(Fault {
            code: FaultCode::Unreachable,
            execution: Execution::NotStarted,
            reason: "refused".into(),
        }),
    };
    let id = Id::Number(-4);
    let message = refused(&id, &refusal);
    assert_eq!(Said::read(&message), Ok(Said::Refused { id, refusal }));
}

#[test]
fn a_request_may_leave_out_what_has_a_default() {
    let least = Bytes::from_static(br#"{"method":"GET","url":"http://a/","requestId":"r"}"#);
    let asked = Asked::read(&least).unwrap();
    assert_eq!(asked.headers, []);
    assert_eq!((asked.body, asked.timeout_ms), (None, None));
    assert_eq!(asked.redirects, Redirects::Follow);
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
        assert_eq!(Asked::read(&wrong), Err(FrameError::Member(name)));
    }
}

#[test]
fn what_is_no_message_is_told() {
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
        assert!(Said::read(&Bytes::from(wrong)).is_err(), "{wrong}");
    }
    let answer = malformed(FrameError::NoObject);
    assert!(text(&answer).ends_with(r#","id":-1}"#));
}

#[test]
fn a_piece_that_is_too_long_is_refused_before_it_is_decoded() {
    let message = write_delta("http-1", 1, &vec![b'x'; DELTA_BYTES_MAX], None);
    assert_eq!(
        Delta::read(&params(&message)).unwrap().len(),
        DELTA_BYTES_MAX
    );
    let message = write_delta("http-1", 1, &vec![b'x'; DELTA_BYTES_MAX + 1], None);
    let refused = Delta::read(&params(&message)).map(|_| ());
    assert_eq!(refused, Err(FrameError::Member("deltaBase64")));
    // As text, one byte more may be as long.
    for (bytes, fits) in [(BODY_BYTES_MAX, true), (BODY_BYTES_MAX + 1, false)] {
        let message = Answered::write(&Id::Number(1), 200, &[], &vec![b'x'; bytes]);
        assert_eq!(Answered::read(&params(&message)).is_ok(), fits);
    }
}

#[test]
fn values_are_counted_and_more_than_there_may_be_are_refused() {
    for (json, want) in [
        ("1", 1),
        ("[]", 1),
        ("[ ]", 1),
        ("{ }", 1),
        ("[1]", 2),
        (r#"{"a":1,"b":[2,"[,]\"",{}]}"#, 6),
        (r#"[[],{"a":[]},"\\"]"#, 5),
    ] {
        assert_eq!(nodes(json.as_bytes()), want, "{json}");
    }
    let of = |count: usize| {
        let list = "0,".repeat(count - 1) + "0";
        Bytes::from(format!(r#"{{"method":"x","params":[{list}]}}"#))
    };
    // The object, the word and the array are values too.
    assert!(Said::read(&of(NODES_MAX - 3)).is_ok());
    let refused = Said::read(&of(NODES_MAX - 2));
    assert_eq!(refused, Err(FrameError::TooManyValues));
}

#[test]
fn bytes_at_random_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(11);
    let messages = [
        write_delta("http-1", 1, b"some bytes", Some(Err("why"))),
        opened(&Id::Number(4), "session"),
        Answered::write(&Id::Number(4), 200, &[], b"body"),
        malformed(FrameError::NoKind),
    ];
    for _ in 0..20_000 {
        let at = random.usize(..messages.len());
        let mut message = messages[at].to_vec();
        for _ in 0..random.usize(1..4) {
            let place = random.usize(..message.len());
            message[place] = random.u8(..);
        }
        let message = Bytes::from(message);
        if let Ok(Said::Notice { params, .. }) = Said::read(&message)
            && let Ok(delta) = Delta::read(&params)
        {
            let _ = delta.decode();
        }
        let _ = Answered::read(&message);
        let _ = Asked::read(&message);
    }
}
