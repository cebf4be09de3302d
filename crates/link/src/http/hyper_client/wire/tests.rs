//! Answers in any pieces, good and bad.

use std::ops::Range;

use bytes::BytesMut;
use fastrand::Rng;
use http::{Method, StatusCode};

use super::super::ClientLimits;
use super::body::{Broken, Decoder, Step};
use super::head;
use crate::http::client::HttpError;

/// Answers that are tried, of each kind.
const ROUNDS: u64 = 10_000;

/// What was read of one answer.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: StatusCode,
    body: Vec<u8>,
    /// What came after it.
    stray: Vec<u8>,
    keeps: bool,
}

/// Reads an answer that arrives in random pieces and is then closed.
fn read(input: &[u8], random: &mut Rng) -> Result<Seen, String> {
    let mut pieces = Pieces {
        rest: input,
        random,
    };
    let mut buffer = BytesMut::new();
    let limits = ClientLimits::default();
    let mut head = loop {
        let found = head::read(&mut buffer, &limits, &Method::POST);
        match found.map_err(|error| error.to_string())? {
            Some(head) if head.status.is_informational() => {}
            Some(head) => break head,
            None if pieces.rest.is_empty() => return Err("no head".to_owned()),
            None => buffer.extend_from_slice(pieces.next()),
        }
    };
    let length = head.body.has_end().then(|| head.body.expects());
    let mut body = Vec::new();
    let read = loop {
        match head.body.step(&mut buffer) {
            Ok(Step::Data(piece)) => body.extend_from_slice(&piece),
            Ok(Step::End) => break Ok(()),
            Ok(Step::More) if pieces.rest.is_empty() => match head.body.close() {
                Ok(()) => {}
                Err(broken) => break Err(broken.to_string()),
            },
            Ok(Step::More) => buffer.extend_from_slice(pieces.next()),
            Err(broken) => {
                assert_eq!(head.body.step(&mut buffer), Err(broken));
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
    Ok(Seen {
        status: head.status,
        body,
        stray: buffer.to_vec(),
        keeps: head.keeps,
    })
}

struct Pieces<'a> {
    rest: &'a [u8],
    random: &'a mut Rng,
}

impl<'a> Pieces<'a> {
    fn next(&mut self) -> &'a [u8] {
        let most = *self.random.choice(&[1, 2, 7, 64, 20_000]).unwrap();
        let length = self.random.usize(1..=most).min(self.rest.len());
        let (next, rest) = self.rest.split_at(length);
        self.rest = rest;
        next
    }
}

fn some(random: &mut Rng, length: Range<usize>) -> Vec<u8> {
    let length = random.usize(length);
    let any = |_| *random.choice(b"ab0\r\n;: {}\xff\0").unwrap();
    (0..length).map(any).collect()
}

/// Makes an answer and says how it must be read.
fn valid(random: &mut Rng) -> (Vec<u8>, Seen) {
    let mut text = Vec::new();
    for _ in 0..random.usize(0..3) {
        text.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n");
    }
    text.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n");
    let long = random.u8(0..20) == 0;
    let body = some(random, if long { 0..40_000 } else { 0..200 });
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
        stray = some(random, 0..3);
        text.extend_from_slice(&stray);
    }
    let seen = Seen {
        status: StatusCode::OK,
        body,
        stray,
        keeps: kind != 2,
    };
    (text, seen)
}

#[test]
fn a_valid_answer_is_read_to_its_end_in_whatever_pieces_it_comes() {
    for seed in 0..ROUNDS {
        let mut random = Rng::with_seed(seed);
        let (text, want) = valid(&mut random);
        assert_eq!(read(&text, &mut random), Ok(want), "seed {seed}");
    }
}

#[test]
fn a_broken_answer_gives_no_more_than_it_declares_and_breaks_nothing() {
    let mut refused = 0_u64;
    for seed in 0..ROUNDS {
        let mut random = Rng::with_seed(seed);
        let (mut text, _) = valid(&mut random);
        for _ in 0..random.usize(1..6) {
            // Heads are short, and most that can go wrong goes wrong there.
            let most = if random.bool() { 120 } else { text.len() };
            let at = random.usize(..most.min(text.len()).max(1));
            match random.u8(0..4) {
                0 => text[at] = random.u8(..),
                1 => text.insert(at, *random.choice(b"\r\n0f;:, ").unwrap()),
                2 if text.len() > 1 => drop(text.remove(at)),
                _ => text.truncate(at.max(1)),
            }
        }
        refused += u64::from(read(&text, &mut random).is_err());
    }
    assert!((ROUNDS / 4..ROUNDS).contains(&refused), "{refused}");
}

fn head_of(lines: &str) -> Result<head::Head, HttpError> {
    let mut buffer = BytesMut::from(format!("HTTP/1.1 200 OK\r\n{lines}\r\n").as_bytes());
    let limits = ClientLimits::default();
    head::read(&mut buffer, &limits, &Method::POST).map(|head| head.expect("it is whole"))
}

#[test]
fn framing_that_can_be_read_in_two_ways_is_refused() {
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
        let refused = head_of(lines);
        assert!(matches!(refused, Err(HttpError::Head(_))), "{lines:?}");
    }
    assert!(head_of("content-length: 5\r\ncontent-length: 5\r\n").is_ok());
}

#[test]
fn a_connection_is_not_kept_after_a_word_to_close_it() {
    for (lines, want) in [
        ("content-length: 0\r\n", true),
        ("content-length: 0\r\nconnection: keep-alive\r\n", true),
        ("content-length: 0\r\nconnection: close\r\n", false),
        ("content-length: 0\r\nConnection: x, Close\r\n", false),
        ("", false),
    ] {
        assert_eq!(head_of(lines).unwrap().keeps, want, "{lines:?}");
    }
}

#[test]
fn chunks_are_framed_as_they_say_and_within_bounds() {
    let long = "x".repeat(5_000);
    for (text, want) in [
        ("5\nhello\r\n0\r\n\r\n", Broken::Size),
        ("\r\nhello", Broken::Size),
        ("5 5\r\nhello", Broken::Size),
        ("-5\r\nhello", Broken::Size),
        ("0x5\r\nhello", Broken::Size),
        ("5;\r\r\nhello", Broken::Size),
        ("fffffffffffffffff\r\n", Broken::Size),
        (&format!("5;{long}\r\nhello"), Broken::TooLong),
        ("4\r\nhello\r\n", Broken::DataEnd),
        ("5\r\nhello0\r\n", Broken::DataEnd),
        ("5\r\nhello\n0\r\n", Broken::DataEnd),
        ("0\r\nx: y\n\r\n", Broken::Trailer),
        (
            &format!("0\r\n{}", "a: b\r\n".repeat(5_000)),
            Broken::TooLong,
        ),
    ] {
        let mut buffer = BytesMut::from(text.as_bytes());
        let mut decoder = Decoder::chunked();
        let broken = loop {
            match decoder.step(&mut buffer) {
                Ok(Step::Data(_)) => {}
                other => break other,
            }
        };
        assert_eq!(broken, Err(want), "{text:?}");
    }
}
