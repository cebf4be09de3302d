//! Frames read back as they were written, and what is no frame is none.

use bowline_core::era::Era;

use super::*;

mod bodies;
mod random;

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
    frames.extend(said());
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

fn said() -> Vec<Frame> {
    let (id, number) = (Arc::from("q7"), 3);
    let notification = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"n"}"#);
    let told = |session| Frame::Told {
        server: "s".into(),
        session,
        notification: notification.clone(),
    };
    let session = |event| Frame::Session {
        server: "s".into(),
        session: "a-1".into(),
        event,
    };
    let answer = |answer| Frame::Answer {
        id: Arc::clone(&id),
        number,
        answer,
    };
    vec![
        Frame::Question {
            id: Arc::clone(&id),
            number,
            request: Bytes::from_static(br#"{"jsonrpc":"2.0","id":1.0,"method":"roots/list"}"#),
        },
        answer(Some(Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#,
        ))),
        answer(None),
        Frame::Withdraw {
            id: Arc::clone(&id),
            number,
        },
        Frame::Lacks {
            id,
            ability: Ability::SamplingTools,
        },
        told(None),
        told(Some("a-1".into())),
        session(SessionEvent::Ended),
        session(SessionEvent::RootsChanged),
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
            request_id: Some("r-1".into()),
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
fn frames_are_written_in_the_first_names() {
    for (frame, want) in [
        (
            Frame::Hello(Hello {
                session_id: "w#mcp".into(),
                token: Some("t".into()),
                ..Hello::default()
            }),
            r#"{"kind":"hello","agent":{"session_id":"w#mcp"},"token":"t"}"#,
        ),
        (Frame::Subscribe, r#"{"kind":"subscribe"}"#),
        (Frame::Ack { id: "m".into() }, r#"{"kind":"ack","id":"m"}"#),
        (
            Frame::Delivered { id: "m".into() },
            r#"{"kind":"delivered","id":"m"}"#,
        ),
        (
            Frame::Error(Refusal {
                reason: "no".into(),
                id: Some("m".into()),
                code: None,
            }),
            r#"{"kind":"error","reason":"no","id":"m"}"#,
        ),
        (
            Frame::Deliver {
                to: "hub".into(),
                letter: letter(),
            },
            r#"{"kind":"deliver","to":"hub","message":{"id":"m-1","kind":"mcp_request","created_at":"1970-01-01T00:00:00.000Z","correlation_id":"r-1","ttl_ms":5000,"body":{"op":"manifest"}}}"#,
        ),
    ] {
        assert_eq!(frame.to_bytes(), want.as_bytes());
    }
}

#[test]
fn a_peer_that_knows_only_the_first_names_is_understood() {
    let welcome = read(r#"{"kind":"welcome"}"#);
    assert_eq!(welcome, Ok(Frame::Welcome(Welcome::default())));
    let hello = r#"{"agent":{"role":null,"session_id":"w"},"kind":"hello","token":"t"}"#;
    let want = Hello {
        session_id: "w".into(),
        token: Some("t".into()),
        ..Hello::default()
    };
    assert_eq!(read(hello), Ok(Frame::Hello(want)));
    let message = r#"{ "kind" : "message", "message" : {"id":"5f","from":{"session_id":"hub",
        "role":null,"host":"x"},"kind":"mcp_reply","body":{"result":{"success":true,"result":"3"}},
        "created_at":"2026-01-01T00:00:00Z","correlation_id":"q"} }"#;
    let Ok(Frame::Message(letter)) = read(message) else {
        panic!("no message");
    };
    assert_eq!(&*letter.from.unwrap().session_id, "hub");
    assert_eq!(letter.correlation_id.as_deref(), Some("q"));
    assert_eq!(letter.ttl_ms, None);
    assert!(letter.raw.starts_with(b"{\"id\":\"5f\"") && letter.raw.ends_with(b"\"q\"}"));
    let unknown = r#"{"kind":"publish_event_batch","to":7,"batch":[1]}"#;
    let kind = "publish_event_batch".into();
    let request_id = None;
    assert_eq!(read(unknown), Ok(Frame::Other { kind, request_id }));
}

#[test]
fn a_letter_that_lasts_shorter_says_so_and_every_other_byte_stays() {
    for (raw, want) in [
        (
            r#"{"id":"1","kind":"k", "ttl_ms" : 5000 ,"body":0}"#,
            r#"{"id":"1","kind":"k", "ttl_ms" : 7 ,"body":0}"#,
        ),
        (
            r#"{"id":"1","kind":"k","body":0}"#,
            r#"{"ttl_ms":7,"id":"1","kind":"k","body":0}"#,
        ),
    ] {
        let letter = Letter::read(&Bytes::from_static(raw.as_bytes())).unwrap();
        let shorter = letter.lasting(7);
        assert_eq!(shorter.raw, want.as_bytes());
        assert_eq!(Letter::read(&shorter.raw), Ok(shorter));
    }
}

#[test]
fn what_a_server_may_nest_fits_into_a_frame_and_no_more() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let deepest = nested(crate::scan::DEPTH_MAX - 2);
    let result = Bytes::from(format!(r#"{{"content":{deepest}}}"#));
    let answer = Answer::Output {
        result,
        again: false,
        era: Era::Legacy,
    };
    let letter = Letter::new(&Draft {
        id: "1",
        kind: REPLY,
        body: &answer.to_bytes(Said::Whole),
        correlation_id: None,
        ttl_ms: None,
        created_at_ms: 0,
    });
    let Ok(Frame::Message(came)) = Frame::read(&Frame::Message(letter).to_bytes()) else {
        panic!("no message");
    };
    assert_eq!(Answer::read(&came.body), Ok(answer));
    assert!(Letter::read(&came.raw).is_ok());
    let bomb = format!(
        r#"{{"kind":"response","id":"1","body":{}}}"#,
        nested(10_000)
    );
    assert_eq!(read(&bomb), Err(FrameError::NoObject));
}

#[test]
fn a_hello_shows_no_credential() {
    let hello = Hello {
        token: Some("s3cret".into()),
        ..Hello::default()
    };
    let shown = format!("{:?}", Frame::Hello(hello));
    assert!(!shown.contains("s3cret"), "{shown}");
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
            r#"{"kind":"question","id":"1","request":{}}"#,
            FrameError::Member("number"),
        ),
        (
            r#"{"kind":"answer","id":"1","number":1,"answer":[]}"#,
            FrameError::Member("answer"),
        ),
        (
            r#"{"kind":"told","notification":{}}"#,
            FrameError::Member("server"),
        ),
        (
            r#"{"kind":"offer","revision":1,"servers":{}}"#,
            FrameError::Member("servers"),
        ),
    ] {
        assert_eq!(read(text), Err(why), "{text}");
    }
}
