//! Malformed frames from seeds: parsing never panics, and parsed frames round-trip.

use super::body_tests::all_responses;
use super::*;
use crate::fuzz;

/// Frames of every kind with bodies of every kind, as texts to start from.
fn corpus() -> Vec<String> {
    let mut frames = all_frames();
    for answer in all_responses() {
        for said in [ResultForm::Whole, ResultForm::Brief] {
            frames.push(BrokerFrame::Response {
                id: "1".into(),
                body: answer.to_bytes(said),
            });
        }
    }
    for body in [
        r#"{"op":"call","tool":"t","server":"s","arguments":"{\"a\":1.0}"}"#,
        r#"{"op":"call","tool":"t","params":{"name":"t","arguments":{"a":[1,{}]}}}"#,
    ] {
        let letter = MailboxMessage::new(&MessageDraft {
            id: "m",
            kind: REQUEST_KIND,
            body: MessageBody::Json(body.as_bytes()),
            correlation_id: None,
            ttl_ms: None,
            created_at_ms: 0,
        });
        frames.push(BrokerFrame::Message(letter.with_sender(sender())));
        frames.push(BrokerFrame::Request(LiveRequest {
            id: "1".into(),
            body: body.into(),
            ..LiveRequest::default()
        }));
    }
    let text = |frame: &BrokerFrame| String::from_utf8(frame.to_bytes().to_vec()).unwrap();
    frames.iter().map(text).collect()
}

/// Parses a payload as every kind of body.
fn parse_bodies(body: &Bytes) {
    if let Ok(ask) = BrokerRequest::parse(body) {
        assert_eq!(BrokerRequest::parse(&ask.to_bytes()), Ok(ask));
    }
    if let Ok(answer) = BrokerResponse::parse(body) {
        for said in [ResultForm::Whole, ResultForm::Brief] {
            let written = answer.to_bytes(said);
            assert!(bowline_wire::scan::check_json(&written, bowline_wire::KeyPolicy::Any).is_ok());
            assert_eq!(BrokerResponse::parse(&written), Ok(answer.clone()));
        }
    }
}

#[test]
fn malformed_frames_never_panic() {
    let corpus = corpus();
    let corpus: Vec<&str> = corpus.iter().map(String::as_str).collect();
    fuzz::for_each_mutation(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        let Ok(frame) = BrokerFrame::parse(&bytes) else {
            return;
        };
        // Accepted frames are JSON for a second parser as well.
        assert!(
            serde_json::from_slice::<serde_json::Value>(input).is_ok() || has_unusual_value(input)
        );
        let written = frame.to_bytes();
        assert_eq!(BrokerFrame::parse(&written).as_ref(), Ok(&frame));
        match &frame {
            BrokerFrame::Request(LiveRequest { body, .. }) | BrokerFrame::Response { body, .. } => {
                parse_bodies(body)
            }
            BrokerFrame::Deliver { message, .. } | BrokerFrame::Message(message) => {
                parse_bodies(&message.body);
                assert_eq!(MailboxMessage::parse(&message.raw).as_ref(), Ok(message));
                let stamped = message.clone().with_sender(sender());
                let read = MailboxMessage::parse(&stamped.to_bytes()).unwrap();
                assert_eq!((&read, &read.sender), (&stamped, &Some(sender())));
                let lasting = stamped.with_ttl(7);
                let read = MailboxMessage::parse(&lasting.to_bytes()).unwrap();
                assert_eq!((&read, read.ttl_ms), (&lasting, Some(7)));
                assert_eq!(read.sender, Some(sender()));
            }
            _ => {}
        }
    });
}

/// Whether a text holds values accepted here and refused by the oracle: a lone surrogate, or a
/// number beyond the range of a float.
fn has_unusual_value(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input).to_ascii_lowercase();
    text.contains("\\ud") || text.contains("e999") || text.contains("e+")
}

#[test]
fn random_bodies_never_panic() {
    let corpus = corpus();
    let corpus: Vec<&str> = corpus.iter().map(String::as_str).collect();
    fuzz::for_each_mutation(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        // Unvalidated input must terminate as well.
        let _ = BrokerResponse::parse(&bytes);
        let _ = BrokerRequest::parse(&bytes);
        let _ = MailboxMessage::parse(&bytes);
    });
}
