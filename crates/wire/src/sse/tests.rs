//! Tests of the event stream.

use super::*;
use crate::testing::fuzz;

const WIDE: SseLimits = SseLimits {
    line_bytes_max: 1 << 20,
    event_bytes_max: 1 << 20,
};

fn encode(event: SseEvent<'_>) -> String {
    let mut out = Vec::new();
    encode_event(&mut out, &event).unwrap();
    String::from_utf8(out).unwrap()
}

fn decode(chunks: &[&[u8]]) -> Vec<OwnedSseEvent> {
    let mut decoder = SseDecoder::new(WIDE);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.push(chunk).unwrap();
        events.extend(std::iter::from_fn(|| decoder.next()));
    }
    events
}

fn event(data: &str) -> OwnedSseEvent {
    OwnedSseEvent {
        data: data.into(),
        ..OwnedSseEvent::default()
    }
}

#[test]
fn event_is_written_field_by_field() {
    let all = SseEvent {
        id: Some("7/1"),
        event: Some("message"),
        data: b"{}",
    };
    assert_eq!(encode(all), "id: 7/1\nevent: message\ndata: {}\n\n");
    let none = SseEvent {
        id: None,
        event: None,
        data: b"",
    };
    assert_eq!(encode(none), "data: \n\n");
}

#[test]
fn data_line_breaks_become_data_lines() {
    for (data, want) in [
        ("a\nb", "data: a\ndata: b\n\n"),
        ("a\rb", "data: a\ndata: b\n\n"),
        ("a\r\nb", "data: a\ndata: b\n\n"),
        ("a\n\rb", "data: a\ndata: \ndata: b\n\n"),
        ("\n", "data: \ndata: \n\n"),
        ("a\r\n\r\nid: x", "data: a\ndata: \ndata: id: x\n\n"),
    ] {
        let event = SseEvent {
            id: None,
            event: None,
            data: data.as_bytes(),
        };
        assert_eq!(encode(event), want, "{data:?}");
    }
}

#[test]
fn unsafe_id_or_name_is_refused() {
    for text in ["a\nb", "\r", "a\0"] {
        let mut out = Vec::new();
        let id = encode_event(
            &mut out,
            &SseEvent {
                id: Some(text),
                event: None,
                data: b"",
            },
        );
        assert_eq!(id, Err(SseError::Field { field: "id" }), "{text:?}");
        let name = encode_event(
            &mut out,
            &SseEvent {
                id: Some("1"),
                event: Some(text),
                data: b"",
            },
        );
        assert_eq!(name, Err(SseError::Field { field: "event" }), "{text:?}");
        assert_eq!(out, b"");
    }
}

#[test]
fn comment_is_ignored_by_readers() {
    let mut out = Vec::new();
    encode_comment(&mut out, "still\r\nhere\ndata: no");
    assert_eq!(out, b": still\n: here\n: data: no\n\n");
    assert_eq!(decode(&[&out]), []);
}

#[test]
fn encoded_events_round_trip() {
    let mut out = b"\xef\xbb\xbf".to_vec();
    for data in ["", " x", "{\"a\":1}", "a\nb", "\n\n", ": colon"] {
        let event = SseEvent {
            id: Some("é 1"),
            event: Some("m"),
            data: data.as_bytes(),
        };
        encode_event(&mut out, &event).unwrap();
    }
    let data: Vec<_> = decode(&[&out])
        .into_iter()
        .map(|event| event.data)
        .collect();
    assert_eq!(
        data,
        [&b""[..], b" x", b"{\"a\":1}", b"a\nb", b"\n\n", b": colon"]
    );
}

#[test]
fn streams_decode_per_specification() {
    let named = |name: &str, data: &str| OwnedSseEvent {
        event: Some(name.into()),
        ..event(data)
    };
    let id = |id: &str, data: &str| OwnedSseEvent {
        id: Some(id.into()),
        ..event(data)
    };
    let retry = |ms: u64| OwnedSseEvent {
        retry_ms: Some(ms),
        ..event("")
    };
    for (stream, want) in [
        ("data: a\n\n", vec![event("a")]),
        ("data:a\r\n\r\n", vec![event("a")]),
        ("data:  a\r\r", vec![event(" a")]),
        ("\u{feff}data: a\n\n", vec![event("a")]),
        ("\n\u{feff}data: a\n\n", vec![]),
        ("data\n\n", vec![event("")]),
        ("data\ndata\n\n", vec![event("\n")]),
        ("data: a\ndata:\ndata: b\n\n", vec![event("a\n\nb")]),
        ("data: a\n\ndata: b\n\n", vec![event("a"), event("b")]),
        (
            "event: x\ndata: a\n\ndata: b\n\n",
            vec![named("x", "a"), event("b")],
        ),
        ("event: x\n\ndata: b\n\n", vec![event("b")]),
        ("event:\ndata: b\n\n", vec![event("b")]),
        ("id: 1\ndata: a\n\n", vec![id("1", "a")]),
        ("id: 1\ndata:\n\n", vec![id("1", "")]),
        ("id: 1\n\n", vec![id("1", "")]),
        ("id\ndata: a\n\n", vec![id("", "a")]),
        ("id: a\0b\ndata: a\n\n", vec![event("a")]),
        ("retry: 1500\n\n", vec![retry(1500)]),
        (
            "retry: -1\nretry: 1x\nretry:\nretry: 99999999999999999999\n\n",
            vec![],
        ),
        (": comment\n:\n\n", vec![]),
        ("unknown: a\nDATA: b\n data: c\n\n", vec![]),
        ("data: a\n", vec![]),
        ("data: a", vec![]),
        ("", vec![]),
    ] {
        assert_eq!(decode(&[stream.as_bytes()]), want, "{stream:?}");
    }
}

#[test]
fn chunk_boundaries_do_not_matter() {
    let stream = "\u{feff}id: é1\r\nevent: m\rdata: a😀\r\ndata: b\n\r\n: c\r\r\
                  data: c\n\nretry: 5\r\n\r\n"
        .as_bytes();
    let whole = decode(&[stream]);
    assert_eq!(whole.len(), 3);
    for first in 0..=stream.len() {
        for second in first..=stream.len() {
            let (head, tail) = stream.split_at(second);
            let (head, middle) = head.split_at(first);
            assert_eq!(decode(&[head, middle, tail]), whole, "{first} {second}");
        }
    }
    let bytes: Vec<_> = stream.chunks(1).collect();
    assert_eq!(decode(&bytes), whole);
}

#[test]
fn event_is_ready_at_last_line_end() {
    assert_eq!(decode(&[b"data: a\r\n\r"]), [event("a")]);
    assert_eq!(
        decode(&[b"data: a\r\n\r", b"\ndata: b\n\n"]),
        [event("a"), event("b")]
    );
}

#[test]
fn oversized_line_or_event_breaks_stream() {
    let limits = SseLimits {
        line_bytes_max: 10,
        event_bytes_max: 12,
    };
    let line = Err(SseError::Line { line_bytes_max: 10 });
    let event = Err(SseError::Event {
        event_bytes_max: 12,
    });
    for (chunks, want) in [
        (&["data: 1234\n\n"][..], Ok(())),
        (&["data: 12345\n\n"], line),
        (&["data: 1", "2345"], line),
        (&[": 34567890", "1"], line),
        (&["data:12345\ndata:123456\n"], line),
        (&["data:12345\ndata:12345\n"], Ok(())),
        (&["data:12345\ndata:12345\ndata:1\n"], event),
        (&["data:12345\ndata:1234\nid:12\n"], Ok(())),
        (&["data:12345\ndata:1234\nid:123\n"], event),
        (&["event:123\nid:123\ndata:12345\ndata:1\n"], event),
        (&["data:12345\n\ndata:12345\n\ndata:12345\n\n"], Ok(())),
    ] {
        let mut decoder = SseDecoder::new(limits);
        let got = chunks
            .iter()
            .try_for_each(|chunk| decoder.push(chunk.as_bytes()));
        assert_eq!(got, want, "{chunks:?}");
        if want.is_err() {
            while decoder.next().is_some() {}
            assert_eq!(decoder.push(b"\n\ndata: a\n\n"), want);
            assert_eq!(decoder.next(), None);
        }
    }
}

#[test]
fn empty_data_lines_count_toward_limit() {
    let mut decoder = SseDecoder::new(SseLimits {
        line_bytes_max: 10,
        event_bytes_max: 3,
    });
    assert_eq!(decoder.push(b"data\ndata\ndata\ndata\n"), Ok(()));
    assert_eq!(
        decoder.push(b"data\n"),
        Err(SseError::Event { event_bytes_max: 3 })
    );
}

#[test]
fn retry_time_comes_with_next_event() {
    let mut out = Vec::new();
    encode_retry(&mut out, 1_000);
    let event = SseEvent {
        id: Some("a-0"),
        event: None,
        data: b"",
    };
    encode_event(&mut out, &event).unwrap();
    assert_eq!(out, b"retry: 1000\nid: a-0\ndata: \n\n");
}

#[test]
fn untaken_events_break_stream() {
    let mut decoder = SseDecoder::new(WIDE);
    let stream = "data\n\n".repeat(EVENTS_MAX);
    assert_eq!(decoder.push(stream.as_bytes()), Ok(()));
    assert_eq!(decoder.push(b"data\n\n"), Err(SseError::Backlog));
    assert_eq!(std::iter::from_fn(|| decoder.next()).count(), EVENTS_MAX);
}

#[test]
fn malformed_streams_ignore_chunk_boundaries() {
    let corpus = [
        "id: 1\nevent: message\ndata: {\"a\":1}\n\n: ping\n\ndata: b\ndata: c\n\n",
        "\u{feff}data: a\r\n\r\nretry: 10\r\rid: é\r\ndata\r\n\r\n",
        "event: endpoint\ndata: /messages?x=1\n\n",
    ];
    let limits = SseLimits {
        line_bytes_max: 24,
        event_bytes_max: 30,
    };
    fuzz::for_each_mutation(&corpus, |input| {
        let read = |size: usize| {
            let mut decoder = SseDecoder::new(limits);
            let fault = input
                .chunks(size)
                .find_map(|chunk| decoder.push(chunk).err());
            let events: Vec<_> = std::iter::from_fn(|| decoder.next()).collect();
            (fault, events)
        };
        let whole = read(input.len().max(1));
        for size in [1, 2, 3, 7] {
            assert_eq!(read(size), whole, "chunks of {size}");
        }
        for event in whole.1 {
            // An invalid byte of an id or name is replaced by three.
            assert!(event.data.len() <= limits.event_bytes_max);
        }
    });
}
