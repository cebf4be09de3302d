//! Servers that an executor runs, from the gateway's side: what a wrong executor says harms nobody.

use std::sync::Arc;

use bowline_core::error::Execution;
use bowline_core::flow::FlowLimits;
use bowline_link::executor::{Distant, Session, Tunnel};
use bowline_link::stdio::Process as _;
use bowline_link::{Exit, LinkError};
use bowline_wire::executor::{
    Exited, Fault, FaultCode, Frame, Mark, Open, Opened, SERVER_WINDOW_BYTES, data,
};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::script::{Script, hello, join, limits, pair, session, sockets, soon, start, within};

/// Returns a server that runs, and its stream.
async fn running(tunnel: &Arc<Tunnel>, script: &mut Script) -> (Distant, u64) {
    let asking = {
        let tunnel = Arc::clone(tunnel);
        start(async move { tunnel.start("files", soon()).await })
    };
    let Frame::Start { stream, start } = script.next().await else {
        panic!("nothing is started");
    };
    assert_eq!(
        (&*start.server, start.credit),
        ("files", SERVER_WINDOW_BYTES)
    );
    script.say(Frame::Started { stream, pid: 42 }).await;
    (within(asking).await.unwrap().unwrap(), stream)
}

/// Connects a session again, with what the executor says that it has; returns what it heard.
async fn again(session: &Arc<Session>, marks: &[Mark]) -> (Arc<Tunnel>, Script, Open) {
    let (gateway, mut script) = sockets(limits()).await;
    let opening = async {
        script.say(Frame::Hello(hello())).await;
        let Frame::Open(open) = script.next().await else {
            panic!("no open");
        };
        let (resumed, marks) = (true, marks.to_vec());
        script.say(Frame::Opened(Opened { resumed, marks })).await;
        (script, open)
    };
    let (tunnel, (script, open)) = tokio::join!(join(gateway, Arc::clone(session)), opening);
    (tunnel.unwrap(), script, open)
}

fn exited(stream: u64, how: &str, number: u64) -> Frame {
    let exited = Exited {
        how: how.into(),
        number: Some(number),
    };
    Frame::Exited { stream, exited }
}

#[tokio::test]
async fn a_gap_in_the_output_ends_that_server_after_what_came_and_no_other() {
    for wrong in [data(1, 4, b"gap"), data(1, 0, b"again")] {
        let (tunnel, mut script) = pair().await;
        let (mut broken, one) = running(&tunnel, &mut script).await;
        let (mut whole, two) = running(&tunnel, &mut script).await;
        assert_eq!((one, two), (1, 2));
        script.out.send(data(one, 0, b"abc")).await.unwrap();
        script.out.send(wrong).await.unwrap();
        let mut said = String::new();
        let streams = broken.streams();
        let mut stdout = streams.stdout.unwrap();
        within(stdout.read_to_string(&mut said)).await.unwrap();
        assert_eq!(said, "abc");
        assert_eq!(within(broken.wait()).await, Exit::Gone);
        // The executor is told to end it.
        assert_eq!(script.next().await, Frame::Cancel { stream: one });
        script.out.send(data(two, 0, b"xyz")).await.unwrap();
        script.say(exited(two, "status", 0)).await;
        assert_eq!(within(whole.wait()).await, Exit::Status(0));
    }
}

#[tokio::test]
async fn more_output_than_was_allowed_ends_that_server_and_the_connection_stays() {
    let (tunnel, mut script) = pair().await;
    let (mut process, stream) = running(&tunnel, &mut script).await;
    let piece = vec![b'x'; 32 * 1024];
    let mut offset = 0;
    while offset <= SERVER_WINDOW_BYTES {
        script.out.send(data(stream, offset, &piece)).await.unwrap();
        offset += piece.len() as u64;
    }
    assert_eq!(within(process.wait()).await, Exit::Gone);
    assert_eq!(script.next().await, Frame::Cancel { stream });
    let mut read = Vec::new();
    let mut stdout = process.streams().stdout.unwrap();
    within(stdout.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read.len() as u64, SERVER_WINDOW_BYTES);
    running(&tunnel, &mut script).await;
}

#[tokio::test]
async fn a_writer_waits_for_credit_and_what_is_not_acknowledged_is_said_again() {
    let session = session(FlowLimits::default());
    let (tunnel, mut script, _) = again(&session, &[]).await;
    let (mut process, stream) = running(&tunnel, &mut script).await;
    let mut stdin = process.streams().stdin.unwrap();
    let writing = start(async move {
        let bytes = vec![b'x'; usize::try_from(SERVER_WINDOW_BYTES).unwrap() + 5];
        stdin.write_all(&bytes).await.unwrap();
        stdin
    });
    let mut came = 0;
    while came < SERVER_WINDOW_BYTES {
        let Frame::Data { offset, bytes, .. } = script.next().await else {
            panic!("no input");
        };
        assert_eq!(offset, came);
        came += bytes.len() as u64;
    }
    assert_eq!(came, SERVER_WINDOW_BYTES);
    assert!(!writing.is_finished());
    // The rest of it comes once it is taken, from where the executor says that it is.
    drop((tunnel, script));
    let received = SERVER_WINDOW_BYTES - 7;
    let mark = Mark {
        stream,
        received,
        credit: 12,
    };
    let (_tunnel, mut script, open) = again(&session, &[mark]).await;
    let ours = Mark {
        stream,
        received: 0,
        credit: SERVER_WINDOW_BYTES,
    };
    assert_eq!(open.marks, [ours]);
    let mut rest = Vec::new();
    while rest.len() < 12 {
        let Frame::Data { offset, bytes, .. } = script.next().await else {
            panic!("no input");
        };
        assert_eq!(offset, received + rest.len() as u64);
        rest.extend_from_slice(&bytes);
    }
    assert_eq!(rest, b"xxxxxxxxxxxx");
    drop(within(writing).await.unwrap());
    let end = Frame::End {
        stream,
        offset: SERVER_WINDOW_BYTES + 5,
        trailers: Bytes::new(),
    };
    assert_eq!(script.next().await, end);
}

#[tokio::test]
async fn an_executor_that_lost_what_it_had_does_not_go_on_with_a_hole() {
    let session = session(FlowLimits::default());
    let (tunnel, mut script, _) = again(&session, &[]).await;
    let (mut process, stream) = running(&tunnel, &mut script).await;
    drop((tunnel, script));
    // It says that it has input which was never written.
    let mark = Mark {
        stream,
        received: 9,
        credit: 9,
    };
    let (_tunnel, mut script, _) = again(&session, &[mark]).await;
    assert_eq!(within(process.wait()).await, Exit::Away);
    assert_eq!(script.next().await, Frame::Cancel { stream });
}

#[tokio::test]
async fn a_stop_that_was_not_heard_is_said_again_and_late_words_are_nobodys() {
    let session = session(FlowLimits::default());
    let (tunnel, mut script, _) = again(&session, &[]).await;
    let (process, stream) = running(&tunnel, &mut script).await;
    let mut process = process;
    let stopping = start(async move {
        let exit = process.stop(bowline_link::StdioLimits::default()).await;
        (process, exit)
    });
    let at_once = false;
    assert_eq!(script.next().await, Frame::Stop { stream, at_once });
    drop((tunnel, script));
    // Whoever stops it does not wait for the connection, and lets it go.
    let (process, exit) = within(stopping).await.unwrap();
    assert_eq!(exit, None);
    let mark = Mark {
        stream,
        received: 0,
        credit: 1,
    };
    let (tunnel, mut script, _) = again(&session, &[mark]).await;
    assert_eq!(script.next().await, Frame::Stop { stream, at_once });
    drop(process);
    assert_eq!(script.next().await, Frame::Cancel { stream });
    script.out.send(data(stream, 0, b"late")).await.unwrap();
    script.say(exited(stream, "status", 1)).await;
    let (mut next, stream) = running(&tunnel, &mut script).await;
    script.say(exited(stream, "signal", 9)).await;
    assert_eq!(within(next.wait()).await, Exit::Signal(9));
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_one_that_nobody_waits_for_is_taken_back() {
    let (tunnel, mut script) = pair().await;
    let asking = {
        let tunnel = Arc::clone(&tunnel);
        start(async move { tunnel.start("files", soon()).await })
    };
    let Frame::Start { stream, .. } = script.next().await else {
        panic!("nothing is started");
    };
    let fault = Fault {
        code: FaultCode::UnknownServer,
        execution: Execution::NotStarted,
        reason: "there is none".into(),
    };
    script.say(Frame::Failed { stream, fault }).await;
    let Err(LinkError::Elsewhere(failure)) = within(asking).await.unwrap() else {
        panic!("it runs");
    };
    assert_eq!(&*failure.reason, "there is none");
    assert_eq!(script.next().await, Frame::Cancel { stream });
    let asking = {
        let tunnel = Arc::clone(&tunnel);
        start(async move { tunnel.start("files", soon()).await })
    };
    let Frame::Start { stream, .. } = script.next().await else {
        panic!("nothing is started");
    };
    asking.abort();
    assert_eq!(script.next().await, Frame::Cancel { stream });
}
