//! Round trips of broker frames, and invalid frames.

use bowline_core::era::Era;

use super::*;

mod body_tests;
mod random_bodies;

fn parse(text: &str) -> Result<BrokerFrame, FrameError> {
    BrokerFrame::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

fn message() -> MailboxMessage {
    MailboxMessage::new(&MessageDraft {
        id: "m-1",
        kind: REQUEST_KIND,
        body: MessageBody::Json(br#"{"op":"manifest"}"#),
        correlation_id: Some("r-1"),
        ttl_ms: Some(5_000),
        created_at_ms: 0,
    })
}

/// Frames of each kind, with every member and without optional members.
fn all_frames() -> Vec<BrokerFrame> {
    let mut frames = stored_frames();
    frames.extend(list_frames());
    frames.extend(live_frames());
    frames.extend(call_event_frames());
    frames
}

fn sender() -> MessageSender {
    MessageSender {
        session_id: "w#mcp".into(),
        role: Some("reviewer".into()),
        principal: Some("ci".into()),
    }
}

fn stored_frames() -> Vec<BrokerFrame> {
    vec![
        BrokerFrame::Hello(BrokerHello {
            claimed_mailbox: "w".into(),
            claimed_role: Some("r".into()),
            token: Some("t\"\\".into()),
            instance: Some("i".into()),
        }),
        BrokerFrame::Hello(BrokerHello::default()),
        BrokerFrame::Welcome(BrokerWelcome {
            mailbox: "w".into(),
            role: Some("r".into()),
            heartbeat_ms: 10_000,
            requests_max: 256,
        }),
        BrokerFrame::BrokerIdentity { id: "b".into() },
        BrokerFrame::Error(BrokerRefusal {
            reason: "no".into(),
            id: Some("m-1".into()),
            code: Some("auth".into()),
        }),
        BrokerFrame::Error(BrokerRefusal::default()),
        BrokerFrame::Deliver {
            to: "hub".into(),
            message: message(),
        },
        BrokerFrame::Delivered { id: "m-1".into() },
        BrokerFrame::Subscribe,
        BrokerFrame::Message(message().with_sender(sender())),
        BrokerFrame::Ack { id: "m-1".into() },
        BrokerFrame::AckWithReceipt {
            id: "m-1".into(),
            request_id: "q".into(),
        },
        BrokerFrame::AckResult {
            id: "m-1".into(),
            request_id: "q".into(),
            accepted: true,
            reason: Some("é".into()),
        },
        BrokerFrame::Nak {
            id: "m-1".into(),
            delay_ms: 7,
            dead_letter_reason: None,
        },
        BrokerFrame::Nak {
            id: "m-1".into(),
            delay_ms: 0,
            dead_letter_reason: Some("poison".into()),
        },
        BrokerFrame::Cancel {
            to: Some("hub".into()),
            correlation_id: "m-1".into(),
        },
        BrokerFrame::Cancel {
            to: None,
            correlation_id: "m-1".into(),
        },
    ]
}

fn list_frames() -> Vec<BrokerFrame> {
    vec![
        BrokerFrame::ListConnected { role: None },
        BrokerFrame::ListConnected {
            role: Some("r".into()),
        },
        BrokerFrame::Connected { ids: Vec::new() },
        BrokerFrame::Connected {
            ids: vec!["a".into(), "b#c".into()],
        },
        BrokerFrame::ListDead { limit: 3 },
        BrokerFrame::Dead {
            dead_letters: Bytes::from_static(b"[{}]"),
        },
        BrokerFrame::Offer {
            revision: u64::MAX,
            servers: Bytes::from_static(br#"[{"name":"a","tools":[]}]"#),
        },
        BrokerFrame::Changed { revision: 3 },
    ]
}

fn call_event_frames() -> Vec<BrokerFrame> {
    let (id, number) = (Arc::from("q7"), 3);
    let notification = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"n"}"#);
    let told = |session| BrokerFrame::SessionNotification {
        server: "s".into(),
        session,
        notification: notification.clone(),
    };
    let session = |event| BrokerFrame::Session {
        server: "s".into(),
        session: "a-1".into(),
        event,
    };
    let answer = |answer| BrokerFrame::ServerRequestReply {
        id: Arc::clone(&id),
        number,
        answer,
    };
    vec![
        BrokerFrame::ServerRequest {
            id: Arc::clone(&id),
            number,
            request: Bytes::from_static(br#"{"jsonrpc":"2.0","id":1.0,"method":"roots/list"}"#),
        },
        answer(Some(Bytes::from_static(
            br#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#,
        ))),
        answer(None),
        BrokerFrame::CancelServerRequest {
            id: Arc::clone(&id),
            number,
        },
        BrokerFrame::MissingCapability {
            id,
            capability: ClientCapability::SamplingTools,
        },
        told(None),
        told(Some("a-1".into())),
        session(SessionEvent::Ended),
        session(SessionEvent::RootsChanged),
    ]
}

fn live_frames() -> Vec<BrokerFrame> {
    vec![
        BrokerFrame::Request(LiveRequest {
            id: "1".into(),
            to: Some("w".into()),
            body: Bytes::from_static(br#"{"op":"manifest"}"#),
            ttl_ms: Some(1),
            caller: Some(sender()),
        }),
        BrokerFrame::Request(LiveRequest {
            id: "1".into(),
            body: Bytes::from_static(b"null"),
            ..LiveRequest::default()
        }),
        BrokerFrame::Response {
            id: "1".into(),
            body: Bytes::from_static(br#"{"output":{"n":1.50e+3}}"#),
        },
        BrokerFrame::Event {
            id: "1".into(),
            notification: Bytes::from_static(br#"{"jsonrpc":"2.0","method":"x"}"#),
        },
        BrokerFrame::Unknown {
            kind: "observe_host".into(),
            request_id: Some("r-1".into()),
        },
    ]
}

#[test]
fn every_frame_round_trips() {
    for frame in all_frames() {
        let bytes = frame.to_bytes();
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
        assert_eq!(BrokerFrame::parse(&bytes), Ok(frame), "{bytes:?}");
    }
}

#[test]
fn frames_use_common_member_names() {
    for (frame, want) in [
        (
            BrokerFrame::Hello(BrokerHello {
                claimed_mailbox: "w#mcp".into(),
                token: Some("t".into()),
                ..BrokerHello::default()
            }),
            r#"{"kind":"hello","agent":{"session_id":"w#mcp"},"token":"t"}"#,
        ),
        (BrokerFrame::Subscribe, r#"{"kind":"subscribe"}"#),
        (
            BrokerFrame::Ack { id: "m".into() },
            r#"{"kind":"ack","id":"m"}"#,
        ),
        (
            BrokerFrame::Delivered { id: "m".into() },
            r#"{"kind":"delivered","id":"m"}"#,
        ),
        (
            BrokerFrame::Error(BrokerRefusal {
                reason: "no".into(),
                id: Some("m".into()),
                code: None,
            }),
            r#"{"kind":"error","reason":"no","id":"m"}"#,
        ),
        (
            BrokerFrame::Deliver {
                to: "hub".into(),
                message: message(),
            },
            r#"{"kind":"deliver","to":"hub","message":{"id":"m-1","kind":"mcp_request","created_at":"1970-01-01T00:00:00.000Z","correlation_id":"r-1","ttl_ms":5000,"body":{"op":"manifest"}}}"#,
        ),
    ] {
        assert_eq!(frame.to_bytes(), want.as_bytes());
    }
}

#[test]
fn minimal_peer_frames_are_parsed() {
    let welcome = parse(r#"{"kind":"welcome"}"#);
    assert_eq!(welcome, Ok(BrokerFrame::Welcome(BrokerWelcome::default())));
    let hello = r#"{"agent":{"role":null,"session_id":"w"},"kind":"hello","token":"t"}"#;
    let want = BrokerHello {
        claimed_mailbox: "w".into(),
        token: Some("t".into()),
        ..BrokerHello::default()
    };
    assert_eq!(parse(hello), Ok(BrokerFrame::Hello(want)));
    let message = r#"{ "kind" : "message", "message" : {"id":"5f","from":{"session_id":"hub",
        "role":null,"host":"x"},"kind":"mcp_reply","body":{"result":{"success":true,"result":"3"}},
        "created_at":"2026-01-01T00:00:00Z","correlation_id":"q"} }"#;
    let Ok(BrokerFrame::Message(letter)) = parse(message) else {
        panic!("no message");
    };
    assert_eq!(&*letter.sender.unwrap().session_id, "hub");
    assert_eq!(letter.correlation_id.as_deref(), Some("q"));
    assert_eq!(letter.ttl_ms, None);
    assert!(letter.raw.starts_with(b"{\"id\":\"5f\"") && letter.raw.ends_with(b"\"q\"}"));
    let unknown = r#"{"kind":"publish_event_batch","to":7,"batch":[1]}"#;
    let kind = "publish_event_batch".into();
    let request_id = None;
    assert_eq!(
        parse(unknown),
        Ok(BrokerFrame::Unknown { kind, request_id })
    );
}

#[test]
fn with_ttl_changes_only_ttl() {
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
        let letter = MailboxMessage::parse(&Bytes::from_static(raw.as_bytes())).unwrap();
        let shorter = letter.with_ttl(7);
        assert_eq!(shorter.to_bytes(), want.as_bytes());
        assert_eq!(MailboxMessage::parse(&shorter.to_bytes()), Ok(shorter));
    }
}

#[test]
fn deepest_result_fits_frame() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let deepest = nested(bowline_wire::scan::DEPTH_MAX - 2);
    let result = Bytes::from(format!(r#"{{"content":{deepest}}}"#));
    let answer = BrokerResponse::Output {
        result,
        from_journal: false,
        era: Era::Legacy,
    };
    let letter = MailboxMessage::new(&MessageDraft {
        id: "1",
        kind: REPLY_KIND,
        body: MessageBody::Json(&answer.to_bytes(ResultForm::Whole)),
        correlation_id: None,
        ttl_ms: None,
        created_at_ms: 0,
    });
    let Ok(BrokerFrame::Message(came)) =
        BrokerFrame::parse(&BrokerFrame::Message(letter).to_bytes())
    else {
        panic!("no message");
    };
    assert_eq!(BrokerResponse::parse(&came.body), Ok(answer));
    assert!(MailboxMessage::parse(&came.raw).is_ok());
    let bomb = format!(
        r#"{{"kind":"response","id":"1","body":{}}}"#,
        nested(10_000)
    );
    assert_eq!(parse(&bomb), Err(FrameError::NoObject));
}

#[test]
fn hello_debug_hides_token() {
    let hello = BrokerHello {
        token: Some("s3cret".into()),
        ..BrokerHello::default()
    };
    let shown = format!("{:?}", BrokerFrame::Hello(hello));
    assert!(!shown.contains("s3cret"), "{shown}");
}

#[test]
fn payload_is_slice_of_frame() {
    let bytes = BrokerFrame::Response {
        id: "1".into(),
        body: Bytes::from_static(br#"{"output":{}}"#),
    }
    .to_bytes();
    let Ok(BrokerFrame::Response { body, .. }) = BrokerFrame::parse(&bytes) else {
        panic!("no response");
    };
    assert!(bytes.as_ptr_range().contains(&body.as_ptr()));
}

#[test]
fn with_sender_changes_only_sender() {
    let hub = MessageSender {
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
        let letter = MailboxMessage::parse(&Bytes::from_static(raw.as_bytes())).unwrap();
        let stamped = letter.with_sender(hub.clone());
        assert_eq!(stamped.to_bytes(), want.as_bytes());
        assert_eq!(stamped.sender.as_ref(), Some(&hub));
        assert_eq!(MailboxMessage::parse(&stamped.to_bytes()), Ok(stamped));
    }
}

#[test]
fn invalid_frames_are_refused() {
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
        assert_eq!(parse(text), Err(why), "{text}");
    }
}
