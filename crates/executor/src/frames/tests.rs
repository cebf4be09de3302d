//! Round trips of executor frames, and invalid frames.

use bowline_core::error::ExecutionStatus;
use bytes::Bytes;

use super::*;

fn request_head() -> RequestHead {
    RequestHead {
        server: "tracker".into(),
        credit: 65_536,
        connect_ms: Some(10_000),
        first_byte_ms: None,
        body_len: Some(2),
        secret_headers: vec![SecretHeader {
            header: "authorization".into(),
            before: "Bearer ".into(),
            secret: "tracker".into(),
            after: "".into(),
        }],
        method: "POST".into(),
        url: "https://tracker.example/mcp?a=\"b\"".into(),
        header_lines: Bytes::from_static(b"x-a: \xff\xfe\r\nx-a: 2\r\n"),
    }
}

fn request_frames() -> Vec<ExecutorFrame> {
    let stream = u64::MAX - 7;
    let fault = StreamFault {
        code: StreamFaultCode::Denied,
        execution: ExecutionStatus::NotStarted,
        reason: "not allowed".into(),
    };
    let marks = vec![StreamMark {
        stream,
        received: 9,
        credit: 10,
    }];
    vec![
        ExecutorFrame::Hello(ExecutorHello {
            protocol_version: VERSION,
            name: "office".into(),
            servers: vec!["files".into(), "git".into()],
            ..ExecutorHello::default()
        }),
        ExecutorFrame::OpenSession(OpenSession {
            protocol_version: VERSION,
            session: "s".into(),
            marks: marks.clone(),
        }),
        ExecutorFrame::OpenSessionReply(OpenSessionReply {
            is_resumed: true,
            marks,
        }),
        ExecutorFrame::Request {
            stream,
            head: request_head(),
        },
        ExecutorFrame::Response {
            stream,
            head: ResponseHead {
                status: 200,
                header_lines: Bytes::from_static(b"set-cookie: a\r\nset-cookie: \x80\r\n"),
            },
        },
        ExecutorFrame::Data {
            stream,
            offset: 7,
            bytes: Bytes::from_static(b"\0\xffbody"),
        },
        ExecutorFrame::End {
            stream,
            offset: 13,
            trailers: Bytes::from_static(b"x-sum: 1\r\n"),
        },
        ExecutorFrame::Credit { stream, bytes: 8 },
        ExecutorFrame::Cancel { stream },
        ExecutorFrame::Fault { stream, fault },
    ]
}

fn all_frames() -> Vec<ExecutorFrame> {
    [request_frames(), server_frames()].concat()
}

fn server_frames() -> Vec<ExecutorFrame> {
    let stream = 3;
    vec![
        ExecutorFrame::StartServer {
            stream,
            start: StartServer {
                server: "files".into(),
                credit: 1,
            },
        },
        ExecutorFrame::ServerStarted { stream, pid: 12 },
        ExecutorFrame::Stderr {
            stream,
            bytes: Bytes::from_static(b"oops"),
        },
        ExecutorFrame::StopServer {
            stream,
            at_once: true,
        },
        ExecutorFrame::ServerExit {
            stream,
            exit: ServerExit {
                cause: "signal".into(),
                number: Some(9),
            },
        },
    ]
}

#[test]
fn every_executor_frame_round_trips() {
    for frame in all_frames() {
        let message = frame.to_bytes();
        assert_eq!(ExecutorFrame::parse(&message), Ok(frame));
    }
}

#[test]
fn truncated_frame_is_refused() {
    for frame in all_frames() {
        let message = frame.to_bytes();
        for end in 0..message.len() {
            let cut = message.slice(..end);
            if let Ok(read) = ExecutorFrame::parse(&cut) {
                assert_ne!(read, frame, "cut at {end}");
            }
        }
    }
    for kind in [0, 4, 15, 23, 31, 37, 255] {
        let message = Bytes::from([&[kind][..], &[0; 16]].concat());
        assert_eq!(ExecutorFrame::parse(&message), Err(FrameError::Binary));
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let frames = all_frames();
    for _ in 0..20_000 {
        let at = random.usize(..frames.len());
        let mut message = frames[at].to_bytes().to_vec();
        for _ in 0..random.usize(1..6) {
            let place = random.usize(..message.len());
            message[place] = random.u8(..);
        }
        let _ = ExecutorFrame::parse(&Bytes::from(message));
    }
}
