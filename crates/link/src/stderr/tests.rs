//! Tests of the stderr log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;

use super::*;

fn new_log(limits: StderrLimits) -> Arc<StderrLog> {
    StderrLog::new("s".into(), LogSequencer::new(|| 7), limits)
}

fn line_texts(log: &StderrLog) -> Vec<String> {
    let lines = log.read_after(0, usize::MAX);
    lines.iter().map(|line| line.text.to_string()).collect()
}

/// Returns the lines of the bytes at any chunk size.
fn sanitize_in_chunks(bytes: &[u8]) -> Vec<String> {
    let run = |size: usize| {
        let mut lines = Vec::new();
        let mut plain = LineSanitizer::new(24);
        for chunk in bytes.chunks(size) {
            plain.push(chunk, |line| lines.push(line.to_owned()));
        }
        plain.finish_line(|line| lines.push(line.to_owned()));
        lines
    };
    let whole = run(bytes.len().max(1));
    assert_eq!(run(1), whole);
    whole
}

#[test]
fn escapes_are_stripped_and_long_lines_cut() {
    assert_eq!(sanitize_in_chunks(b"a\r\n\nb"), ["a", "b"]);
    assert_eq!(
        sanitize_in_chunks(b"\x1b[1;31mred\x1b[0m\tend"),
        ["red\tend"]
    );
    assert_eq!(
        sanitize_in_chunks(b"\x1b]0;title\x07x\x1b]8;;u\x1b\\y"),
        ["xy"]
    );
    assert_eq!(sanitize_in_chunks(b"\x1b(Bplain\x1b7"), ["plain"]);
    assert_eq!(sanitize_in_chunks(b"\x1b[31\nnext"), ["next"]);
    assert_eq!(
        sanitize_in_chunks(b"0123456789012345678901234567"),
        ["012345678901234567890123…"]
    );
}

#[test]
fn invalid_utf8_on_stderr_is_replaced() {
    assert_eq!(
        sanitize_in_chunks(b"a\xff\xfeb\nok"),
        ["a\u{fffd}\u{fffd}b", "ok"]
    );
}

#[test]
fn ring_evicts_by_lines_and_bytes() {
    let limits = StderrLimits {
        lines_max: 3,
        bytes_max: 10,
        line_bytes_max: 100,
    };
    let log = new_log(limits);
    for text in ["a", "b", "c", "d"] {
        log.push_line(text);
    }
    assert_eq!(line_texts(&log), ["b", "c", "d"]);
    log.push_line("123456789");
    assert_eq!(line_texts(&log), ["d", "123456789"]);
    log.push_line("longer than the whole ring");
    assert_eq!(line_texts(&log), Vec::<String>::new());
}

#[test]
fn sequence_numbers_grow_over_all_servers() {
    let clock = AtomicU64::new(5);
    let stamps = LogSequencer::new(move || clock.fetch_add(1, Ordering::Relaxed));
    let one = StderrLog::new("one".into(), stamps.clone(), StderrLimits::default());
    let two = StderrLog::new("two".into(), stamps.clone(), StderrLimits::default());
    one.push_line("a");
    two.push_line("b");
    one.push_line("c");
    one.push_line("d");
    let line = |seq, at_ms, text: &str| LogLine {
        seq,
        server: "one".into(),
        at_ms,
        text: text.into(),
    };
    assert_eq!(one.read_after(1, 1), [line(3, 7, "c")]);
    assert_eq!(
        one.read_after(0, 9),
        [line(1, 5, "a"), line(3, 7, "c"), line(4, 8, "d")]
    );
    assert_eq!(one.tail(1, 1), ["d".into()]);
    assert_eq!(one.tail(1, 9), ["c".into(), "d".into()]);
    assert_eq!(stamps.newest_seq(), 4);
}

#[tokio::test]
async fn new_line_wakes_follower() {
    let log = new_log(StderrLimits::default());
    let mut follower = log.sequencer().subscribe();
    follower.borrow_and_update();
    let (mut child, stderr) = tokio::io::duplex(64);
    let feed = async {
        child.write_all(b"\xffhello\n").await.unwrap();
        drop(child);
    };
    let follow = async {
        follower.changed().await.unwrap();
        *follower.borrow()
    };
    let ((), seq, ()) = tokio::join!(feed, follow, drain_stderr(log.clone(), stderr));
    assert_eq!(seq, 1);
    assert_eq!(line_texts(&log), ["\u{fffd}hello"]);
}

#[test]
fn secret_in_line_is_redacted() {
    let secrets = Redactor::new([("TOKEN", "hunter2hunter2")]);
    let log = StderrLog::with_redactor(
        "s".into(),
        LogSequencer::new(|| 7),
        StderrLimits::default(),
        Arc::new(secrets),
    );
    log.push_line("cannot log in with hunter2hunter2");
    log.push_text("[info] hunter2hunter2");
    assert_eq!(
        line_texts(&log),
        ["cannot log in with ‹TOKEN›", "[info] ‹TOKEN›"]
    );
    assert_eq!(log.tail(0, 1), ["[info] ‹TOKEN›".into()]);
}

#[test]
fn last_words_are_few_short_lines() {
    assert_eq!(last_words(&[]), "");
    assert_eq!(last_words(&["".into(), "  ".into()]), "");
    assert_eq!(
        last_words(&["a ".into(), "".into(), " b".into()]),
        ": a | b"
    );
    let long: Arc<str> = "x".repeat(1_000).into();
    assert_eq!(last_words(&[long]).len(), 2 + 200);
}
