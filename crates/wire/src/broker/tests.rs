//! Frames read back as they were written, and what is no frame is none.

use super::*;

fn read(text: &str) -> Result<Frame, FrameError> {
    Frame::read(&Bytes::copy_from_slice(text.as_bytes()))
}

fn letter() -> Letter {
    Letter::new(&Draft {
        id: "m-1",
        kind: REQUEST,
        body: br#"{"op":"manifest"}"#,
        correlation_id: Some("r-1"),
        ttl_ms: Some(5_000),
        created_at_ms: 0,
    })
}

/// One frame of each kind, with every member and without those that may be absent.
fn frames() -> Vec<Frame> {
    let mut frames = stored();
    frames.extend(lists());
    frames.extend(live());
    frames
}

fn from() -> From {
    From {
        session_id: "w#mcp".into(),
        role: Some("reviewer".into()),
        principal: Some("ci".into()),
    }
}

fn stored() -> Vec<Frame> {
    vec![
        Frame::Hello(Hello {
            session_id: "w".into(),
            role: Some("r".into()),
            token: Some("t\"\\".into()),
            instance: Some("i".into()),
        }),
        Frame::Hello(Hello::default()),
        Frame::Welcome(Welcome {
            mailbox: "w".into(),
            role: Some("r".into()),
            heartbeat_ms: 10_000,
            requests_max: 256,
        }),
        Frame::BrokerIdentity { id: "b".into() },
        Frame::Error(Refusal {
            reason: "no".into(),
            id: Some("m-1".into()),
            code: Some("auth".into()),
        }),
        Frame::Error(Refusal::default()),
        Frame::Deliver {
            to: "hub".into(),
            letter: letter(),
        },
        Frame::Delivered { id: "m-1".into() },
        Frame::Subscribe,
        Frame::Message(letter().stamped(&from())),
        Frame::Ack { id: "m-1".into() },
        Frame::AckWithReceipt {
            id: "m-1".into(),
            request_id: "q".into(),
        },
        Frame::AckResult {
            id: "m-1".into(),
            request_id: "q".into(),
            accepted: true,
            reason: Some("é".into()),
        },
        Frame::Nak {
            id: "m-1".into(),
            delay_ms: 7,
            dead: None,
        },
        Frame::Nak {
            id: "m-1".into(),
            delay_ms: 0,
            dead: Some("poison".into()),
        },
        Frame::Cancel {
            to: Some("hub".into()),
            correlation_id: "m-1".into(),
        },
        Frame::Cancel {
            to: None,
            correlation_id: "m-1".into(),
        },
    ]
}

fn lists() -> Vec<Frame> {
    vec![
        Frame::ListConnected { role: None },
        Frame::ListConnected {
            role: Some("r".into()),
        },
        Frame::Connected { ids: Vec::new() },
        Frame::Connected {
            ids: vec!["a".into(), "b#c".into()],
        },
        Frame::ListDead { limit: 3 },
        Frame::Dead {
            letters: Bytes::from_static(b"[{}]"),
        },
        Frame::Offer {
            revision: u64::MAX,
            servers: Bytes::from_static(br#"[{"name":"a","tools":[]}]"#),
        },
        Frame::Changed { revision: 3 },
    ]
}

fn live() -> Vec<Frame> {
    vec![
        Frame::Request(Request {
            id: "1".into(),
            to: Some("w".into()),
            body: Bytes::from_static(br#"{"op":"manifest"}"#),
            ttl_ms: Some(1),
            caller: Some(from()),
        }),
        Frame::Request(Request {
            id: "1".into(),
            body: Bytes::from_static(b"null"),
            ..Request::default()
        }),
        Frame::Response {
            id: "1".into(),
            body: Bytes::from_static(br#"{"output":{"n":1.50e+3}}"#),
        },
        Frame::Event {
            id: "1".into(),
            notification: Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#),
        },
        Frame::Other {
            kind: "observe_host".into(),
        },
    ]
}

#[test]
fn every_frame_reads_back_as_it_was_written() {
    for frame in frames() {
        let bytes = frame.to_bytes();
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
        assert_eq!(Frame::read(&bytes), Ok(frame), "{bytes:?}");
    }
}

#[test]
fn a_payload_is_a_piece_of_the_frame_and_no_copy() {
    let bytes = Frame::Response {
        id: "1".into(),
        body: Bytes::from_static(br#"{"output":{}}"#),
    }
    .to_bytes();
    let Ok(Frame::Response { body, .. }) = Frame::read(&bytes) else {
        panic!("no response");
    };
    assert!(bytes.as_ptr_range().contains(&body.as_ptr()));
}

#[test]
fn a_stamped_letter_has_the_senders_name_and_every_other_byte_as_it_was() {
    let hub = From {
        session_id: "w".into(),
        role: None,
        principal: None,
    };
    for (raw, want) in [
        (
            r#"{ "id":"1", "kind":"k" ,"x":1.0,"body":[ ]}"#,
            r#"{"from":{"session_id":"w"}, "id":"1", "kind":"k" ,"x":1.0,"body":[ ]}"#,
        ),
        (
            r#"{"id":"1","fr\u006fm": {"session_id":"victim","role":"owner"} ,"kind":"k","body":0}"#,
            r#"{"id":"1","fr\u006fm": {"session_id":"w"} ,"kind":"k","body":0}"#,
        ),
        (
            r#"{"id":"1","kind":"k","body":0,"from":null}"#,
            r#"{"id":"1","kind":"k","body":0,"from":{"session_id":"w"}}"#,
        ),
    ] {
        let letter = Letter::read(&Bytes::from_static(raw.as_bytes())).unwrap();
        let stamped = letter.stamped(&hub);
        assert_eq!(stamped.raw, want.as_bytes());
        assert_eq!(stamped.from.as_ref(), Some(&hub));
        assert_eq!(Letter::read(&stamped.raw), Ok(stamped));
    }
}

#[test]
fn what_is_no_frame_is_none() {
    for (text, why) in [
        ("", FrameError::NoObject),
        ("[]", FrameError::NoObject),
        ("\"hello\"", FrameError::NoObject),
        (r#"{"kind":"subscribe"} x"#, FrameError::NoObject),
        (r#"{"kind":"subscribe","x":01}"#, FrameError::NoObject),
        (r#"{"kind":"subscribe","kind":"ack"}"#, FrameError::NoObject),
        (
            r#"{"kind":"response","id":"1","body":{"a":}}"#,
            FrameError::NoObject,
        ),
        ("{}", FrameError::NoKind),
        (r#"{"kind":1}"#, FrameError::NoKind),
        (r#"{"kind":"\ud800"}"#, FrameError::NoKind),
        (r#"{"kind":"ack"}"#, FrameError::Member("id")),
        (r#"{"kind":"ack","id":7}"#, FrameError::Member("id")),
        (r#"{"kind":"ack","id":null}"#, FrameError::Member("id")),
        (
            r#"{"kind":"deliver","to":"hub"}"#,
            FrameError::Member("message"),
        ),
        (
            r#"{"kind":"message","message":{"id":"1","kind":"k","body":0,"from":{},"from":{}}}"#,
            FrameError::Member("from"),
        ),
        (
            r#"{"kind":"request","id":"1","body":{},"ttl_ms":-1}"#,
            FrameError::Member("ttl_ms"),
        ),
        (
            r#"{"kind":"request","id":"1","body":{},"ttl_ms":99999999999999999999}"#,
            FrameError::Member("ttl_ms"),
        ),
        (
            r#"{"kind":"connected","ids":[1]}"#,
            FrameError::Member("ids"),
        ),
        (
            r#"{"kind":"offer","revision":1,"servers":{}}"#,
            FrameError::Member("servers"),
        ),
    ] {
        assert_eq!(read(text), Err(why), "{text}");
    }
}

#[test]
fn arguments_come_out_byte_for_byte_whether_they_came_as_text_or_as_an_object() {
    let exact = r#"{"n": 1.50e+3, "big":12345678901234567890123,"é":"\u00e9\n" }"#;
    let mut as_text = Vec::new();
    crate::splice::write_string(&mut as_text, exact);
    let as_text = String::from_utf8(as_text).unwrap();
    for arguments in [exact, &as_text] {
        let body = format!(r#"{{"op":"call","tool":"t","arguments":{arguments}}}"#);
        let Ok(Ask::Call { arguments, .. }) = Ask::read(&body.into()) else {
            panic!("no call");
        };
        let Arguments::Object(bytes) = arguments else {
            panic!("no object");
        };
        assert_eq!(bytes, exact.as_bytes());
    }
}

#[test]
fn an_answer_reads_back_in_both_forms() {
    let result = Bytes::from_static(br#"{"content":[{"type":"text","text":"a"}],"isError":true}"#);
    let answer = Answer::Output {
        result,
        again: true,
    };
    for said in [Said::Whole, Said::Brief] {
        assert_eq!(Answer::read(&answer.to_bytes(said)), Ok(answer.clone()));
    }
    assert_eq!(
        answer.to_bytes(Said::Whole),
        &br#"{"result":{"success":false,"result":"a","output":{"content":[{"type":"text","text":"a"}],"isError":true}},"again":true}"#[..]
    );
}
