//! Frames survive the wire, and what is none is told.

use bowline_core::error::Execution;
use bytes::Bytes;

use super::*;

fn asked() -> Asked {
    Asked {
        server: "tracker".into(),
        credit: 65_536,
        connect_ms: Some(10_000),
        first_byte_ms: None,
        length: Some(2),
        fills: vec![Fill {
            header: "authorization".into(),
            before: "Bearer ".into(),
            secret: "tracker".into(),
            after: "".into(),
        }],
        method: "POST".into(),
        url: "https://tracker.example/mcp?a=\"b\"".into(),
        lines: Bytes::from_static(b"x-a: \xff\xfe\r\nx-a: 2\r\n"),
    }
}

fn of_requests() -> Vec<Frame> {
    let stream = u64::MAX - 7;
    let fault = Fault {
        code: FaultCode::Denied,
        execution: Execution::NotStarted,
        reason: "not allowed".into(),
    };
    let marks = vec![Mark {
        stream,
        received: 9,
        credit: 10,
    }];
    vec![
        Frame::Hello(Hello {
            v: VERSION,
            name: "office".into(),
            servers: vec!["files".into(), "git".into()],
            ..Hello::default()
        }),
        Frame::Open(Open {
            v: VERSION,
            session: "s".into(),
            marks: marks.clone(),
        }),
        Frame::Opened(Opened {
            resumed: true,
            marks,
        }),
        Frame::Request {
            stream,
            asked: asked(),
        },
        Frame::Answer {
            stream,
            answered: Answered {
                status: 200,
                lines: Bytes::from_static(b"set-cookie: a\r\nset-cookie: \x80\r\n"),
            },
        },
        Frame::Data {
            stream,
            offset: 7,
            bytes: Bytes::from_static(b"\0\xffbody"),
        },
        Frame::End {
            stream,
            offset: 13,
            trailers: Bytes::from_static(b"x-sum: 1\r\n"),
        },
        Frame::Credit { stream, bytes: 8 },
        Frame::Cancel { stream },
        Frame::Failed { stream, fault },
    ]
}

fn frames() -> Vec<Frame> {
    [of_requests(), of_servers()].concat()
}

fn of_servers() -> Vec<Frame> {
    let stream = 3;
    vec![
        Frame::Start {
            stream,
            start: Start {
                server: "files".into(),
                credit: 1,
            },
        },
        Frame::Started { stream, pid: 12 },
        Frame::Stderr {
            stream,
            bytes: Bytes::from_static(b"oops"),
        },
        Frame::Stop {
            stream,
            at_once: true,
        },
        Frame::Exited {
            stream,
            exited: Exited {
                how: "signal".into(),
                number: Some(9),
            },
        },
    ]
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    for frame in frames() {
        let message = frame.to_bytes();
        assert_eq!(Frame::read(&message), Ok(frame));
    }
}

#[test]
fn a_frame_that_is_cut_off_is_told_and_never_taken_for_a_whole_one() {
    for frame in frames() {
        let message = frame.to_bytes();
        for end in 0..message.len() {
            let cut = message.slice(..end);
            if let Ok(read) = Frame::read(&cut) {
                assert_ne!(read, frame, "cut at {end}");
            }
        }
    }
    for kind in [0, 4, 15, 23, 31, 37, 255] {
        let message = Bytes::from([&[kind][..], &[0; 16]].concat());
        assert_eq!(Frame::read(&message), Err(FrameError::Binary));
    }
}

#[test]
fn bytes_at_random_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(7);
    let frames = frames();
    for _ in 0..20_000 {
        let at = random.usize(..frames.len());
        let mut message = frames[at].to_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            let place = random.usize(..message.len());
            message[place] = random.u8(..);
        }
        let _ = Frame::read(&Bytes::from(message));
    }
}
