//! Tests of byte ranges and edits.

use super::{ByteEdit, ByteSpan, EditedText, write_string};

fn edited(source: &str, edits: &[(usize, usize, &str)]) -> String {
    let edits: Vec<_> = edits
        .iter()
        .map(|&(start, end, with)| ByteEdit {
            at: ByteSpan { start, end },
            with: with.as_bytes().into(),
        })
        .collect();
    let source = source.as_bytes();
    let edited = EditedText {
        source,
        edits: &edits,
    };
    String::from_utf8(edited.to_vec()).unwrap()
}

#[test]
fn edits_replace_insert_and_delete() {
    for (edits, want) in [
        (&[][..], "0123456789"),
        (&[(2, 4, "ab")], "01ab456789"),
        (&[(0, 0, "<"), (10, 10, ">")], "<0123456789>"),
        (&[(0, 10, "")], ""),
        (&[(1, 2, ""), (2, 3, "x"), (3, 3, "yz")], "0xyz3456789"),
        (
            &[(9, 10, "longer than before")],
            "012345678longer than before",
        ),
    ] {
        assert_eq!(edited("0123456789", edits), want);
    }
}

#[test]
fn write_appends_to_buffer() {
    let mut out = b"[".to_vec();
    EditedText::from_source(b"1").write(&mut out);
    assert_eq!(out, b"[1");
}

#[test]
fn written_string_round_trips() {
    for text in [
        "",
        "plain",
        "quote \" slash \\ tab \t line \n return \r nul \0 bell \u{7} del \u{7f}",
        "\u{8}\u{c}\u{1f}",
        "é \u{d7ff} \u{e000} \u{fffd} \u{ffff} 😀 \u{2028}",
    ] {
        let mut out = Vec::new();
        write_string(&mut out, text);
        assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        assert_eq!(out, serde_json::to_vec(text).unwrap());
    }
}

#[test]
fn span_slices_bytes_or_nothing() {
    let span = ByteSpan { start: 1, end: 3 };
    assert_eq!(span.slice(b"abcd"), b"bc");
    assert_eq!(span.slice(b"ab"), b"");
    assert_eq!(ByteSpan { start: 3, end: 1 }.slice(b"abcd"), b"");
    assert_eq!(ByteSpan { start: 3, end: 1 }.len(), 0);
}

#[test]
fn shifted_span_keeps_its_length() {
    let span = ByteSpan { start: 1, end: 3 }.shift(10);
    assert_eq!(span, ByteSpan { start: 11, end: 13 });
    assert_eq!(span.len(), 2);
    assert!(!span.is_empty());
}
