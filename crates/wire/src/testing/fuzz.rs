//! Malformed inputs for parser tests, each from a seed.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Inputs per parser.
const INPUTS: u64 = 10_000;

/// Seed texts for mutation.
pub(crate) const JSON: &[&str] = &[
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{}}}"#,
    r#"{"jsonrpc":"2.0","id":"a\u0062\"","result":{"content":[{"type":"text","text":"é😀"}]}}"#,
    r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x","data":[1.5e+3,-0]}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}"#,
    " { \"id\" : 12345678901234567890 ,\r\n\t\"result\" : null , \"jsonrpc\" : \"2.0\" } ",
    r#"{"a":{"b":{"c":[[],{},[{}],""]}},"b":true,"c":false,"d":null,"\u0065":0}"#,
    r#"[0,-1,1.0,1e5,1E-7,-0.0,123456789012345678901234567890,1e400,"\ud800","\ud83d\ude00"]"#,
    r#""\"\\\/\b\f\n\r\t\u0000\uDBFF\uDFFF""#,
    "-12.5e+7",
    "null",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
];

/// Inserted fragments, known to confuse parsers.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"/",
    b"-",
    b"+",
    b".",
    b"e",
    b"0",
    b"1",
    b" ",
    b"\n",
    b"\r",
    b"\t",
    b"\0",
    b"\x1f",
    b"\x7f",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\\u",
    b"\\ud800",
    b"\\udc00",
    b"\\u006d",
    b"NaN",
    b"Infinity",
    b"true",
    b"nul",
    b"\"id\":1,",
    b"\"a\":",
    b"//",
    b"/**/",
    b"'",
    b"1e999",
    b"00",
    b"data:",
    b"\n\n",
    b"id:",
    b"retry:",
    b"\xc3",
    b"\xf0\x9f",
];

/// Runs `test` on malformed variants of `corpus`; a failure reports seed and input.
pub(crate) fn for_each_mutation(corpus: &[&str], test: impl Fn(&[u8])) {
    for seed in 0..INPUTS {
        let input = mutate(corpus, seed);
        if catch_unwind(AssertUnwindSafe(|| test(&input))).is_err() {
            panic!("seed {seed}, input {:?}", String::from_utf8_lossy(&input));
        }
    }
}

fn mutate(corpus: &[&str], seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut pick = || corpus[rng.usize(..corpus.len())].as_bytes();
    let (mut input, other) = (pick().to_vec(), pick());
    for _ in 0..rng.usize(1..4) {
        let from = rng.usize(..=input.len());
        let to = rng.usize(from..=input.len().min(from + 8));
        match rng.u8(..7) {
            0 if from < input.len() => input[from] = rng.u8(..),
            1 => drop(input.drain(from..to)),
            2 => input.truncate(from),
            3 => {
                let copy = input[from..to].to_vec();
                let at = rng.usize(..=input.len());
                input.splice(at..at, copy);
            }
            4 => {
                let (start, end) = (rng.usize(..=other.len()), rng.usize(..=other.len()));
                let part = &other[start.min(end)..start.max(end)];
                input.splice(from..to, part.iter().copied());
            }
            _ => {
                let piece = PIECES[rng.usize(..PIECES.len())];
                input.splice(from..from, piece.iter().copied());
            }
        }
    }
    input
}
