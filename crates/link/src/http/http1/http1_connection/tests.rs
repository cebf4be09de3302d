//! Responses split at random, valid and broken.

use std::ops::Range;

use bytes::BytesMut;
use fastrand::Rng;
use http::{Method, StatusCode};

use super::super::HttpClientLimits;
use super::body_decoder::{BodyDecoder, BodyFramingError, DecodeStep};
use super::http1_head;
use crate::http::http_client::HttpError;

/// Responses per test.
const ROUNDS: u64 = 10_000;

/// A parsed response.
#[derive(Debug, PartialEq, Eq)]
struct RecordedRequest {
    status: StatusCode,
    body: Vec<u8>,
    /// Bytes after the response.
    stray: Vec<u8>,
    keeps: bool,
}

/// Reads a response in random chunks, then closes.
fn read_in_chunks(input: &[u8], random: &mut Rng) -> Result<RecordedRequest, String> {
    let mut pieces = ChunkSource {
        rest: input,
        random,
    };
    let mut buffer = BytesMut::new();
    let limits = HttpClientLimits::default();
    let mut head = loop {
        let found = http1_head::parse_response_head(&mut buffer, &limits, &Method::POST);
        match found.map_err(|error| error.to_string())? {
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None if pieces.rest.is_empty() => return Err("no head".to_owned()),
            None => buffer.extend_from_slice(pieces.next_piece()),
        }
    };
    let length = head
        .body
        .has_known_end()
        .then(|| head.body.expected_bytes());
    let mut body = Vec::new();
    let read = loop {
        match head.body.next_step(&mut buffer) {
            Ok(DecodeStep::Data(piece)) => body.extend_from_slice(&piece),
            Ok(DecodeStep::End) => break Ok(()),
            Ok(DecodeStep::More) if pieces.rest.is_empty() => match head.body.on_close() {
                Ok(()) => {}
                Err(broken) => break Err(broken.to_string()),
            },
            Ok(DecodeStep::More) => buffer.extend_from_slice(pieces.next_piece()),
            Err(broken) => {
                assert_eq!(head.body.next_step(&mut buffer), Err(broken));
                break Err(broken.to_string());
            }
        }
    };
    if let Some(length @ 1..) = length {
        assert!(body.len() as u64 <= length, "{input:?}");
    }
    assert!(body.len() <= input.len());
    read?;
    buffer.extend_from_slice(pieces.rest);
    Ok(RecordedRequest {
        status: head.status,
        body,
        stray: buffer.to_vec(),
        keeps: head.is_reusable,
    })
}

struct ChunkSource<'a> {
    rest: &'a [u8],
    random: &'a mut Rng,
}

impl<'a> ChunkSource<'a> {
    fn next_piece(&mut self) -> &'a [u8] {
        let most = *self.random.choice(&[1, 2, 7, 64, 20_000]).unwrap();
        let length = self.random.usize(1..=most).min(self.rest.len());
        let (next, rest) = self.rest.split_at(length);
        self.rest = rest;
        next
    }
}

fn random_bytes(random: &mut Rng, length: Range<usize>) -> Vec<u8> {
    let length = random.usize(length);
    let any = |_| *random.choice(b"ab0\r\n;: {}\xff\0").unwrap();
    (0..length).map(any).collect()
}

/// Generates a response and the expected parse.
fn valid_response(random: &mut Rng) -> (Vec<u8>, RecordedRequest) {
    let mut text = Vec::new();
    for _ in 0..random.usize(0..3) {
        text.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n");
    }
    text.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n");
    let long = random.u8(0..20) == 0;
    let body = random_bytes(random, if long { 0..40_000 } else { 0..200 });
    let kind = random.u8(0..3);
    match kind {
        0 => {
            let line = format!("Content-LENGTH: {}\r\n", body.len());
            for _ in 0..random.usize(1..3) {
                text.extend_from_slice(line.as_bytes());
            }
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(&body);
        }
        1 => {
            text.extend_from_slice(b"transfer-encoding: Chunked\r\n\r\n");
            let mut rest = &body[..];
            while !rest.is_empty() {
                let (chunk, left) = rest.split_at(random.usize(1..=rest.len()));
                let extension = random.choice(["", ";a=b", " ; c", ";\"x\""]).unwrap();
                text.extend_from_slice(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
                rest = left;
            }
            text.extend_from_slice(b"0\r\n");
            for _ in 0..random.usize(0..3) {
                text.extend_from_slice(b"x-sum: 1\r\n");
            }
            text.extend_from_slice(b"\r\n");
        }
        _ => {
            text.extend_from_slice(b"\r\n");
            text.extend_from_slice(&body);
        }
    }
    let mut stray = Vec::new();
    if kind != 2 {
        stray = random_bytes(random, 0..3);
        text.extend_from_slice(&stray);
    }
    let seen = RecordedRequest {
        status: StatusCode::OK,
        body,
        stray,
        keeps: kind != 2,
    };
    (text, seen)
}

#[test]
fn valid_response_is_read_at_any_split() {
    for seed in 0..ROUNDS {
        let mut random = Rng::with_seed(seed);
        let (text, want) = valid_response(&mut random);
        assert_eq!(read_in_chunks(&text, &mut random), Ok(want), "seed {seed}");
    }
}

#[test]
fn broken_response_never_exceeds_declared_length() {
    let mut refused = 0_u64;
    for seed in 0..ROUNDS {
        let mut random = Rng::with_seed(seed);
        let (mut text, _) = valid_response(&mut random);
        for _ in 0..random.usize(1..6) {
            // Heads are short, and most faults are possible in the head.
            let most = if random.bool() { 120 } else { text.len() };
            let at = random.usize(..most.min(text.len()).max(1));
            match random.u8(0..4) {
                0 => text[at] = random.u8(..),
                1 => text.insert(at, *random.choice(b"\r\n0f;:, ").unwrap()),
                2 if text.len() > 1 => drop(text.remove(at)),
                _ => text.truncate(at.max(1)),
            }
        }
        refused += u64::from(read_in_chunks(&text, &mut random).is_err());
    }
    assert!((ROUNDS / 4..ROUNDS).contains(&refused), "{refused}");
}

fn parse_head_lines(lines: &str) -> Result<http1_head::Http1Head, HttpError> {
    let mut buffer = BytesMut::from(format!("HTTP/1.1 200 OK\r\n{lines}\r\n").as_bytes());
    let limits = HttpClientLimits::default();
    http1_head::parse_response_head(&mut buffer, &limits, &Method::POST)
        .map(|head| head.expect("it is whole"))
}

#[test]
fn ambiguous_framing_is_refused() {
    for lines in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: gzip, chunked\r\n",
        "transfer-encoding: identity\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5, 5\r\n",
        "content-length: +5\r\n",
        "content-length: -5\r\n",
        "content-length: 0x5\r\n",
        "content-length:\r\n",
        "content-length: 18446744073709551616\r\n",
        "content-length : 5\r\n",
        "x: a\r\n continued: b\r\n",
    ] {
        let refused = parse_head_lines(lines);
        assert!(matches!(refused, Err(HttpError::BadHead(_))), "{lines:?}");
    }
    assert!(parse_head_lines("content-length: 5\r\ncontent-length: 5\r\n").is_ok());
}

#[test]
fn connection_close_header_prevents_reuse() {
    for (lines, want) in [
        ("content-length: 0\r\n", true),
        ("content-length: 0\r\nconnection: keep-alive\r\n", true),
        ("content-length: 0\r\nconnection: close\r\n", false),
        ("content-length: 0\r\nConnection: x, Close\r\n", false),
        ("", false),
    ] {
        assert_eq!(
            parse_head_lines(lines).unwrap().is_reusable,
            want,
            "{lines:?}"
        );
    }
}

#[test]
fn chunk_framing_is_checked_within_limits() {
    let long = "x".repeat(5_000);
    for (text, want) in [
        ("5\nhello\r\n0\r\n\r\n", BodyFramingError::Size),
        ("\r\nhello", BodyFramingError::Size),
        ("5 5\r\nhello", BodyFramingError::Size),
        ("-5\r\nhello", BodyFramingError::Size),
        ("0x5\r\nhello", BodyFramingError::Size),
        ("5;\r\r\nhello", BodyFramingError::Size),
        ("fffffffffffffffff\r\n", BodyFramingError::Size),
        (&format!("5;{long}\r\nhello"), BodyFramingError::TooLong),
        ("4\r\nhello\r\n", BodyFramingError::DataEnd),
        ("5\r\nhello0\r\n", BodyFramingError::DataEnd),
        ("5\r\nhello\n0\r\n", BodyFramingError::DataEnd),
        ("0\r\nx: y\n\r\n", BodyFramingError::Trailer),
        (
            &format!("0\r\n{}", "a: b\r\n".repeat(5_000)),
            BodyFramingError::TooLong,
        ),
    ] {
        let mut buffer = BytesMut::from(text.as_bytes());
        let mut decoder = BodyDecoder::new_chunked();
        let broken = loop {
            match decoder.next_step(&mut buffer) {
                Ok(DecodeStep::Data(_)) => {}
                other => break other,
            }
        };
        assert_eq!(broken, Err(want), "{text:?}");
    }
}
