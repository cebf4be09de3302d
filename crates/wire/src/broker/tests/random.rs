//! Malformed frames from seeds: reading never panics, and what reads is written so that it reads
//! the same again.

use super::bodies::answers;
use super::*;
use crate::testing::fuzz;

/// Frames of every kind with bodies of every kind, as texts to start from.
fn corpus() -> Vec<String> {
    let mut frames = frames();
    for answer in answers() {
        for said in [Said::Whole, Said::Brief] {
            frames.push(Frame::Response {
                id: "1".into(),
                body: answer.to_bytes(said),
            });
        }
    }
    for body in [
        r#"{"op":"call","tool":"t","server":"s","arguments":"{\"a\":1.0}"}"#,
        r#"{"op":"call","tool":"t","params":{"name":"t","arguments":{"a":[1,{}]}}}"#,
    ] {
        let letter = Letter::new(&Draft {
            id: "m",
            kind: REQUEST,
            body: body.as_bytes(),
            correlation_id: None,
            ttl_ms: None,
            created_at_ms: 0,
        });
        frames.push(Frame::Message(letter.stamped(&from())));
        frames.push(Frame::Request(Request {
            id: "1".into(),
            body: body.into(),
            ..Request::default()
        }));
    }
    let text = |frame: &Frame| String::from_utf8(frame.to_bytes().to_vec()).unwrap();
    frames.iter().map(text).collect()
}

/// Reads what a payload says, in every way that there is.
fn read_body(body: &Bytes) {
    if let Ok(ask) = Ask::read(body) {
        assert_eq!(Ask::read(&ask.to_bytes()), Ok(ask));
    }
    if let Ok(answer) = Answer::read(body) {
        for said in [Said::Whole, Said::Brief] {
            let written = answer.to_bytes(said);
            assert!(crate::scan::check(&written, crate::Keys::Any).is_ok());
            assert_eq!(Answer::read(&written), Ok(answer.clone()));
        }
    }
}

#[test]
fn malformed_frames_are_refused_or_read_back_the_same_and_never_panic() {
    let corpus = corpus();
    let corpus: Vec<&str> = corpus.iter().map(String::as_str).collect();
    fuzz::each(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        let Ok(frame) = Frame::read(&bytes) else {
            return;
        };
        // Nothing is let through that another reader would not take for JSON.
        assert!(serde_json::from_slice::<serde_json::Value>(input).is_ok() || has_odd(input));
        let written = frame.to_bytes();
        assert_eq!(Frame::read(&written).as_ref(), Ok(&frame));
        match &frame {
            Frame::Request(Request { body, .. }) | Frame::Response { body, .. } => read_body(body),
            Frame::Deliver { letter, .. } | Frame::Message(letter) => {
                read_body(&letter.body);
                assert_eq!(Letter::read(&letter.raw).as_ref(), Ok(letter));
                let stamped = letter.stamped(&from());
                assert_eq!(Letter::read(&stamped.raw), Ok(stamped.clone()));
                assert_eq!(stamped.from, Some(from()));
                let lasting = stamped.lasting(7);
                assert_eq!(Letter::read(&lasting.raw), Ok(lasting));
            }
            _ => {}
        }
    });
}

/// Whether a text holds what we take and the oracle does not: a lone surrogate, or a number that
/// no float can hold.
fn has_odd(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input).to_ascii_lowercase();
    text.contains("\\ud") || text.contains("e999") || text.contains("e+")
}

#[test]
fn bodies_of_any_bytes_never_make_a_reader_panic() {
    let corpus = corpus();
    let corpus: Vec<&str> = corpus.iter().map(String::as_str).collect();
    fuzz::each(&corpus, |input| {
        let bytes = Bytes::copy_from_slice(input);
        // Not checked before, as nobody should; it ends all the same.
        let _ = Answer::read(&bytes);
        let _ = Ask::read(&bytes);
        let _ = Letter::read(&bytes);
    });
}
