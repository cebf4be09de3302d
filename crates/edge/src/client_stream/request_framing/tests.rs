//! The framing machine on complete, split and random streams.

use super::*;

/// Filters a stream in a single piece.
fn run_filter(input: &[u8]) -> (Vec<u8>, RequestFraming) {
    let mut bytes = input.to_vec();
    let mut framing = RequestFraming::new();
    framing.filter_bytes(&mut bytes);
    (bytes, framing)
}

/// Asserts the rejection reason, with exactly the byte at `at` spoiled.
fn assert_refused(input: &str, refusal: FramingError, at: usize) {
    let (bytes, framing) = run_filter(input.as_bytes());
    assert_eq!(framing.error(), Some(refusal), "{input:?}");
    let spoiled: Vec<usize> = (0..bytes.len())
        .filter(|&index| bytes[index] != input.as_bytes()[index])
        .collect();
    assert_eq!(spoiled, [at], "{input:?}");
    assert_eq!(bytes[at], 0, "{input:?}");
}

/// Asserts that a head line is rejected at this byte of the line.
fn assert_line_refused(line: &str, refusal: FramingError, at: usize) {
    let before = "POST / HTTP/1.1\r\nHost: a\r\n";
    let input = format!("{before}{line}\r\nAccept: */*\r\n\r\nGET / HTTP/1.1\n");
    assert_refused(&input, refusal, before.len() + at);
}

/// Asserts that the stream passes unchanged, up to the start of the next request.
fn assert_passes(input: &str) {
    let (bytes, framing) = run_filter(input.as_bytes());
    assert_eq!(framing.error(), None, "{input:?}");
    assert_eq!(bytes, input.as_bytes(), "{input:?}");
    assert_eq!(framing.step, FramingStep::Start, "{input:?}");
    assert_eq!(framing.section, HeadSection::Request, "{input:?}");
}

#[test]
fn framing_state_is_small() {
    assert!(
        size_of::<RequestFraming>() <= 24,
        "{}",
        size_of::<RequestFraming>()
    );
}

#[test]
fn line_rule_violation_spoils_one_byte() {
    assert_refused(
        "GET / HTTP/1.1\nHost: a\n\n",
        FramingError::BareLineFeed,
        14,
    );
    assert_refused("\nGET / HTTP/1.1\r\n\r\n", FramingError::BareLineFeed, 0);
    assert_refused("\r\n\nGET / HTTP/1.1\r\n", FramingError::BareLineFeed, 2);
    assert_refused(
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        FramingError::BareLineFeed,
        23,
    );
    assert_refused(
        "GET / HTTP/1.1\r\nHost\nA: b\r\n\r\n",
        FramingError::BareLineFeed,
        20,
    );
    assert_refused(
        "GET / HTTP/1.1\r\n\nHost: a\r\n",
        FramingError::BareLineFeed,
        16,
    );
    assert_refused(
        "GET /\r HTTP/1.1\r\n\r\n",
        FramingError::BareCarriageReturn,
        6,
    );
    assert_refused(
        "GET / HTTP/1.1\r\r\n\r\n",
        FramingError::BareCarriageReturn,
        15,
    );
    assert_refused(
        "GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
        FramingError::BareCarriageReturn,
        21,
    );
    assert_refused(
        "GET / HTTP/1.1\r\n\rHost: a\r\n\r\n",
        FramingError::BareCarriageReturn,
        17,
    );
    assert_refused(
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        FramingError::FoldedLine,
        16,
    );
    assert_refused(
        "GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n",
        FramingError::FoldedLine,
        22,
    );
    assert_refused(" GET / HTTP/1.1\r\n\r\n", FramingError::FoldedLine, 0);
    assert_line_refused("Content-Length : 5", FramingError::SpaceBeforeColon, 14);
    assert_line_refused("X\t: 5", FramingError::SpaceBeforeColon, 1);
}

#[test]
fn second_length_field_is_refused_at_colon() {
    let lines = [
        "Content-Length: 5\r\ncontent-length: 5",
        "Content-Length: 5\r\nCONTENT-LENGTH: 6",
        "Content-Length: 0\r\nContent-Length: 0",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nX: y\r\ntransfer-encoding: identity",
    ];
    for line in lines {
        assert_line_refused(
            line,
            FramingError::DuplicateLength,
            line.rfind(':').unwrap(),
        );
    }
}

#[test]
fn content_length_is_plain_bounded_digits() {
    for (value, at) in [
        ("", 15),
        ("  ", 17),
        ("+5", 15),
        ("-5", 15),
        ("0x5", 16),
        ("5,5", 16),
        ("5, 5", 16),
        ("5 5", 17),
        ("5.0", 16),
        ("9007199254740993", 30),
        ("99999999999999999999999999", 30),
    ] {
        assert_line_refused(
            &format!("Content-Length:{value}"),
            FramingError::InvalidLength,
            at,
        );
    }
    assert_passes("POST / HTTP/1.1\r\ncOnTeNt-LeNgTh:\t 0 \t\r\n\r\n");
    assert_passes("POST / HTTP/1.1\r\nContent-Length: 0003\r\n\r\nabc");
    let (_, framing) = run_filter(b"POST / HTTP/1.1\r\nContent-Length: 9007199254740992\r\n\r\n");
    assert_eq!(
        (framing.step, framing.bytes_left),
        (FramingStep::Body, BODY_BYTES_MAX)
    );
}

#[test]
fn transfer_encoding_is_exactly_chunked() {
    for (value, at) in [
        ("", 18),
        ("chunk", 23),
        ("chunkedd", 25),
        ("chunked, chunked", 25),
        ("gzip, chunked", 18),
        ("identity", 18),
        ("chunked x", 26),
        ("\u{b}chunked", 18),
        ("\"chunked\"", 18),
    ] {
        assert_line_refused(
            &format!("Transfer-Encoding:{value}"),
            FramingError::UnsupportedCoding,
            at,
        );
    }
    assert_passes("POST / HTTP/1.1\r\ntransfer-ENCODING: \t Chunked \r\n\r\n0\r\n\r\n");
}

#[test]
fn similar_field_names_are_not_framing() {
    assert_passes("GET / HTTP/1.1\r\nContent-Length-X: a\r\nX-Content-Length: b\r\n\r\n");
    assert_passes("GET / HTTP/1.1\r\nContent-Lengt: a\r\nTransfer-Encodings: b\r\nT: c\r\n\r\n");
    assert_passes("GET / HTTP/1.1\r\nTontent-Length: a\r\nCransfer-Encoding: b\r\n\r\n");
    assert_passes("GET / HTTP/1.1\r\nX: Content-Length: 5\r\nY: Content-Length: 5\r\n\r\n");
}

#[test]
fn body_bytes_are_not_parsed() {
    assert_passes(
        "POST / HTTP/1.1\r\nContent-Length: 16\r\n\r\nGET / HTTP/1.1\n\nGET / HTTP/1.1\r\n\r\n",
    );
    assert_passes(
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n12\r\nContent-Length: 5\n\r\n\
         A;x=\"y\"\r\n \n\r\0\n\n\n\n\n\n\r\n000\r\nDigest: a\r\n\r\n\
         \r\n\r\nGET / HTTP/1.1\r\n\r\n",
    );
}

#[test]
fn chunks_are_parsed_strictly() {
    let before = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    let cases = [
        ("\r\n", FramingError::MalformedChunk, 0),
        (";a\r\n", FramingError::MalformedChunk, 0),
        ("5 \r\nabcde\r\n", FramingError::MalformedChunk, 1),
        (" 5\r\nabcde\r\n", FramingError::MalformedChunk, 0),
        ("0x5\r\nabcde\r\n", FramingError::MalformedChunk, 1),
        ("-1\r\n", FramingError::MalformedChunk, 0),
        ("5\nabcde\r\n", FramingError::MalformedChunk, 1),
        ("5\rabcde\r\n", FramingError::MalformedChunk, 2),
        ("5;a\rabcde\r\n", FramingError::MalformedChunk, 4),
        ("5\r\nabcdef\r\n", FramingError::MalformedChunk, 8),
        ("5\r\nabcde\n0\r\n", FramingError::MalformedChunk, 8),
        ("5\r\nabcde\r0\r\n", FramingError::MalformedChunk, 9),
        ("20000000000001\r\n", FramingError::MalformedChunk, 13),
        ("00000000000000001\r\n", FramingError::MalformedChunk, 16),
        ("0\r\n\nGET / HTTP/1.1\r\n", FramingError::BareLineFeed, 3),
        (
            "0\r\n\rGET / HTTP/1.1\r\n",
            FramingError::BareCarriageReturn,
            4,
        ),
        ("0\r\nA: b\n\r\n", FramingError::BareLineFeed, 7),
        ("0\r\nA: b\r\n c\r\n\r\n", FramingError::FoldedLine, 9),
        (
            "0\r\nContent-Length: 5\r\n\r\n",
            FramingError::DuplicateLength,
            17,
        ),
        (
            "0\r\nTransfer-Encoding: chunked\r\n\r\n",
            FramingError::DuplicateLength,
            20,
        ),
    ];
    for (chunks, refusal, at) in cases {
        assert_refused(&format!("{before}{chunks}"), refusal, before.len() + at);
    }
}

#[test]
fn chunk_extension_is_bounded() {
    let before = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0;";
    let longest = "e".repeat(usize::from(EXTENSION_BYTES_MAX));
    assert_passes(&format!("{before}{longest}\r\n\r\n"));
    let (bytes, framing) = run_filter(format!("{before}{longest}e\r\n\r\n").as_bytes());
    assert_eq!(framing.error(), Some(FramingError::MalformedChunk));
    assert_eq!(bytes[before.len() + longest.len()], b'\n');
    let (bytes, framing) = run_filter(format!("{before}a\nb\r\n\r\n").as_bytes());
    assert_eq!(framing.error(), Some(FramingError::MalformedChunk));
    assert_eq!(bytes[before.len() + 1], b'\n');
}

#[test]
fn pipelined_request_is_checked_alone() {
    let first = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi";
    let second = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    assert_passes(&format!("{first}{second}{first}\r\n{second}"));
    let third = "GET / HTTP/1.1\r\nHost: a\n\r\n";
    let before = format!("{first}{second}");
    let at = before.len() + 23;
    assert_refused(&format!("{before}{third}"), FramingError::BareLineFeed, at);
}

/// Pieces of streams that reach deep states of the machine before any fault.
const PIECES: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 7\r\n\r\n\n\r \0abc",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\r\n\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "a;ext=1\r\n0123456789\r\n",
    "0\r\nA: b\r\n\r\n",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: a\r\n",
    "\r\n",
    "\r",
    "\n",
    " ",
    "x",
];

#[test]
fn read_boundaries_change_nothing() {
    let mut random = fastrand::Rng::with_seed(0x0b0e_11e5);
    let mut refused = 0;
    for round in 0..20_000 {
        let mut input = Vec::new();
        for _ in 0..random.usize(1..12) {
            // Faulty pieces are last and chosen less often.
            let last = if random.u8(..4) == 0 {
                PIECES.len()
            } else {
                10
            };
            input.extend_from_slice(PIECES[random.usize(..last)].as_bytes());
        }
        let (whole, framing) = run_filter(&input);
        let changed = whole.iter().zip(&input).filter(|(a, b)| a != b).count();
        // A bare line feed in an extension is rejected unchanged.
        assert!(
            changed <= usize::from(framing.error().is_some()),
            "round {round}"
        );
        refused += usize::from(framing.error().is_some());

        let mut cut = input.clone();
        let mut other = RequestFraming::new();
        let mut rest = cut.as_mut_slice();
        while !rest.is_empty() {
            let take = random.usize(1..=rest.len().min(9));
            let (now, later) = rest.split_at_mut(take);
            other.filter_bytes(now);
            rest = later;
        }
        assert_eq!(
            cut,
            whole,
            "round {round}: {:?}",
            input.escape_ascii().to_string()
        );
        assert_eq!(other.error(), framing.error(), "round {round}");
    }
    assert!(
        (2_000..18_000).contains(&refused),
        "{refused} of 20000 refused"
    );
}
