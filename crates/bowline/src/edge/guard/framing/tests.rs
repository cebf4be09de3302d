//! The framing machine over whole, cut and random streams.

use super::*;

/// Filters a stream in one piece.
fn filter(input: &[u8]) -> (Vec<u8>, Framing) {
    let mut bytes = input.to_vec();
    let mut framing = Framing::new();
    framing.filter(&mut bytes);
    (bytes, framing)
}

/// The stream is refused for this reason, and only the byte at `at` is spoiled.
fn check(input: &str, refusal: Refusal, at: usize) {
    let (bytes, framing) = filter(input.as_bytes());
    assert_eq!(framing.refusal(), Some(refusal), "{input:?}");
    let spoiled: Vec<usize> = (0..bytes.len())
        .filter(|&index| bytes[index] != input.as_bytes()[index])
        .collect();
    assert_eq!(spoiled, [at], "{input:?}");
    assert_eq!(bytes[at], 0, "{input:?}");
}

/// The head line is refused for this reason, at this byte of the line.
fn check_line(line: &str, refusal: Refusal, at: usize) {
    let before = "POST / HTTP/1.1\r\nHost: a\r\n";
    let input = format!("{before}{line}\r\nAccept: */*\r\n\r\nGET / HTTP/1.1\n");
    check(&input, refusal, before.len() + at);
}

/// The stream passes unchanged and the machine stands before the next request.
fn check_passes(input: &str) {
    let (bytes, framing) = filter(input.as_bytes());
    assert_eq!(framing.refusal(), None, "{input:?}");
    assert_eq!(bytes, input.as_bytes(), "{input:?}");
    assert_eq!(framing.step, Step::Start, "{input:?}");
    assert_eq!(framing.section, Section::Request, "{input:?}");
}

#[test]
fn the_state_of_a_connection_is_small() {
    assert!(size_of::<Framing>() <= 24, "{}", size_of::<Framing>());
}

#[test]
fn the_byte_that_breaks_the_line_rules_is_spoiled() {
    check("GET / HTTP/1.1\nHost: a\n\n", Refusal::BareLineFeed, 14);
    check("\nGET / HTTP/1.1\r\n\r\n", Refusal::BareLineFeed, 0);
    check("\r\n\nGET / HTTP/1.1\r\n", Refusal::BareLineFeed, 2);
    check("GET / HTTP/1.1\r\nHost: a\n\r\n", Refusal::BareLineFeed, 23);
    check(
        "GET / HTTP/1.1\r\nHost\nA: b\r\n\r\n",
        Refusal::BareLineFeed,
        20,
    );
    check("GET / HTTP/1.1\r\n\nHost: a\r\n", Refusal::BareLineFeed, 16);
    check("GET /\r HTTP/1.1\r\n\r\n", Refusal::BareCarriageReturn, 6);
    check("GET / HTTP/1.1\r\r\n\r\n", Refusal::BareCarriageReturn, 15);
    check(
        "GET / HTTP/1.1\r\nA: b\rc\r\n\r\n",
        Refusal::BareCarriageReturn,
        21,
    );
    check(
        "GET / HTTP/1.1\r\n\rHost: a\r\n\r\n",
        Refusal::BareCarriageReturn,
        17,
    );
    check("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Refusal::Fold, 16);
    check("GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n", Refusal::Fold, 22);
    check(" GET / HTTP/1.1\r\n\r\n", Refusal::Fold, 0);
    check_line("Content-Length : 5", Refusal::SpaceBeforeColon, 14);
    check_line("X\t: 5", Refusal::SpaceBeforeColon, 1);
}

#[test]
fn a_body_length_stated_twice_is_refused_at_the_second_colon() {
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
        check_line(line, Refusal::Twice, line.rfind(':').unwrap());
    }
}

#[test]
fn a_content_length_is_plain_digits_within_the_limit() {
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
        check_line(&format!("Content-Length:{value}"), Refusal::Length, at);
    }
    check_passes("POST / HTTP/1.1\r\ncOnTeNt-LeNgTh:\t 0 \t\r\n\r\n");
    check_passes("POST / HTTP/1.1\r\nContent-Length: 0003\r\n\r\nabc");
    let (_, framing) = filter(b"POST / HTTP/1.1\r\nContent-Length: 9007199254740992\r\n\r\n");
    assert_eq!((framing.step, framing.left), (Step::Body, BODY_BYTES_MAX));
}

#[test]
fn a_transfer_encoding_is_exactly_chunked() {
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
        check_line(&format!("Transfer-Encoding:{value}"), Refusal::Coding, at);
    }
    check_passes("POST / HTTP/1.1\r\ntransfer-ENCODING: \t Chunked \r\n\r\n0\r\n\r\n");
}

#[test]
fn names_that_only_begin_or_end_alike_are_other_fields() {
    check_passes("GET / HTTP/1.1\r\nContent-Length-X: a\r\nX-Content-Length: b\r\n\r\n");
    check_passes("GET / HTTP/1.1\r\nContent-Lengt: a\r\nTransfer-Encodings: b\r\nT: c\r\n\r\n");
    check_passes("GET / HTTP/1.1\r\nTontent-Length: a\r\nCransfer-Encoding: b\r\n\r\n");
    check_passes("GET / HTTP/1.1\r\nX: Content-Length: 5\r\nY: Content-Length: 5\r\n\r\n");
}

#[test]
fn bodies_are_not_read_as_heads() {
    check_passes(
        "POST / HTTP/1.1\r\nContent-Length: 16\r\n\r\nGET / HTTP/1.1\n\nGET / HTTP/1.1\r\n\r\n",
    );
    check_passes(
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n12\r\nContent-Length: 5\n\r\n\
         A;x=\"y\"\r\n \n\r\0\n\n\n\n\n\n\r\n000\r\nDigest: a\r\n\r\n\
         \r\n\r\nGET / HTTP/1.1\r\n\r\n",
    );
}

#[test]
fn chunks_are_followed_strictly() {
    let before = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    let cases = [
        ("\r\n", Refusal::Chunk, 0),
        (";a\r\n", Refusal::Chunk, 0),
        ("5 \r\nabcde\r\n", Refusal::Chunk, 1),
        (" 5\r\nabcde\r\n", Refusal::Chunk, 0),
        ("0x5\r\nabcde\r\n", Refusal::Chunk, 1),
        ("-1\r\n", Refusal::Chunk, 0),
        ("5\nabcde\r\n", Refusal::Chunk, 1),
        ("5\rabcde\r\n", Refusal::Chunk, 2),
        ("5;a\rabcde\r\n", Refusal::Chunk, 4),
        ("5\r\nabcdef\r\n", Refusal::Chunk, 8),
        ("5\r\nabcde\n0\r\n", Refusal::Chunk, 8),
        ("5\r\nabcde\r0\r\n", Refusal::Chunk, 9),
        ("20000000000001\r\n", Refusal::Chunk, 13),
        ("00000000000000001\r\n", Refusal::Chunk, 16),
        ("0\r\n\nGET / HTTP/1.1\r\n", Refusal::BareLineFeed, 3),
        ("0\r\n\rGET / HTTP/1.1\r\n", Refusal::BareCarriageReturn, 4),
        ("0\r\nA: b\n\r\n", Refusal::BareLineFeed, 7),
        ("0\r\nA: b\r\n c\r\n\r\n", Refusal::Fold, 9),
        ("0\r\nContent-Length: 5\r\n\r\n", Refusal::Twice, 17),
        (
            "0\r\nTransfer-Encoding: chunked\r\n\r\n",
            Refusal::Twice,
            20,
        ),
    ];
    for (chunks, refusal, at) in cases {
        check(&format!("{before}{chunks}"), refusal, before.len() + at);
    }
}

#[test]
fn a_chunk_extension_is_bounded_and_spoiled_with_a_line_feed() {
    let before = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0;";
    let longest = "e".repeat(usize::from(EXTENSION_BYTES_MAX));
    check_passes(&format!("{before}{longest}\r\n\r\n"));
    let (bytes, framing) = filter(format!("{before}{longest}e\r\n\r\n").as_bytes());
    assert_eq!(framing.refusal(), Some(Refusal::Chunk));
    assert_eq!(bytes[before.len() + longest.len()], b'\n');
    let (bytes, framing) = filter(format!("{before}a\nb\r\n\r\n").as_bytes());
    assert_eq!(framing.refusal(), Some(Refusal::Chunk));
    assert_eq!(bytes[before.len() + 1], b'\n');
}

#[test]
fn a_request_behind_others_is_judged_alone() {
    let first = "POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi";
    let second = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    check_passes(&format!("{first}{second}{first}\r\n{second}"));
    let third = "GET / HTTP/1.1\r\nHost: a\n\r\n";
    let before = format!("{first}{second}");
    let at = before.len() + 23;
    check(&format!("{before}{third}"), Refusal::BareLineFeed, at);
}

/// Pieces that make streams which go deep into the machine before they break, if they do.
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
fn the_way_a_stream_is_cut_changes_nothing() {
    let mut random = fastrand::Rng::with_seed(0x0b0e_11e5);
    let mut refused = 0;
    for round in 0..20_000 {
        let mut input = Vec::new();
        for _ in 0..random.usize(1..12) {
            // The rude pieces stand at the end and are taken less often.
            let last = if random.u8(..4) == 0 {
                PIECES.len()
            } else {
                10
            };
            input.extend_from_slice(PIECES[random.usize(..last)].as_bytes());
        }
        let (whole, framing) = filter(&input);
        let changed = whole.iter().zip(&input).filter(|(a, b)| a != b).count();
        // A bare line feed in an extension is refused as it is.
        assert!(
            changed <= usize::from(framing.refusal().is_some()),
            "round {round}"
        );
        refused += usize::from(framing.refusal().is_some());

        let mut cut = input.clone();
        let mut other = Framing::new();
        let mut rest = cut.as_mut_slice();
        while !rest.is_empty() {
            let take = random.usize(1..=rest.len().min(9));
            let (now, later) = rest.split_at_mut(take);
            other.filter(now);
            rest = later;
        }
        assert_eq!(
            cut,
            whole,
            "round {round}: {:?}",
            input.escape_ascii().to_string()
        );
        assert_eq!(other.refusal(), framing.refusal(), "round {round}");
    }
    assert!(
        (2_000..18_000).contains(&refused),
        "{refused} of 20000 refused"
    );
}
