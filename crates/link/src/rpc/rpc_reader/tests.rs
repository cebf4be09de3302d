//! Tests of the line buffer.

use super::*;

fn take_all_lines(lines: &mut LineBuffer) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(line) = lines.next(|| 0) {
        found.push(match line {
            BufferedLine::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
            BufferedLine::TooLong(line) => {
                format!("<{} {:?}>", line.length(), line.response_id())
            }
            BufferedLine::Overrun => return [found, vec!["overrun".into()]].concat(),
        });
    }
    found
}

#[test]
fn lines_are_found_at_any_chunk_size() {
    let text = b"one\n\ntwo three\r\n{\"id\":7,\"result\":\"0123456789\"}\nlast";
    for size in 1..text.len() {
        let mut lines = LineBuffer::new(12, 100);
        let mut found = Vec::new();
        for chunk in text.chunks(size) {
            lines.read_buffer().extend_from_slice(chunk);
            found.extend(take_all_lines(&mut lines));
        }
        let rest = lines.take_rest().unwrap();
        let want = ["one", "", "two three\r", "<30 Some(7)>"];
        assert_eq!(
            (found, &rest[..]),
            (want.map(String::from).to_vec(), &b"last"[..])
        );
    }
}

#[test]
fn endless_line_overruns_in_bounded_memory() {
    let mut lines = LineBuffer::new(100, 1_000_000);
    let mut held = 0;
    for _ in 0..2_000 {
        lines.read_buffer().extend_from_slice(&[b'x'; 1_000]);
        if take_all_lines(&mut lines) == ["overrun"] {
            assert!(held < 2 * CHUNK_BYTES, "{held} bytes were held");
            return;
        }
        held = held.max(lines.buffer.len());
    }
    panic!("it was never given up");
}

#[test]
fn long_line_memory_is_released() {
    let mut lines = LineBuffer::new(1_000_000, 2_000_000);
    lines.read_buffer().extend_from_slice(&[b'x'; 900_000]);
    lines.read_buffer().extend_from_slice(b"\n");
    assert_eq!(take_all_lines(&mut lines).len(), 1);
    assert!(lines.read_buffer().capacity() <= KEPT_BYTES_MAX);
}
