//! Remote servers against a scripted executor: a faulty executor affects only a single server.

use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_executor::connection::{ExecutorSession, ExecutorTunnel, RemoteProcess};
use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{
    ExecutorFrame, OpenSession, OpenSessionReply, SERVER_WINDOW_BYTES, ServerExit, StreamFault,
    StreamFaultCode, StreamMark, data_frame,
};
use bowline_link::stdio::ServerProcess as _;
use bowline_link::{LinkError, LinkExit};
use bowline_testkit::{spawn_task, test_deadline, wait_bounded};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::scripted_executor::{
    ScriptedExecutor, new_session, open_tunnel, socket_pair, test_hello, test_limits, tunnel_pair,
};

/// Starts a server; returns the process and the stream.
async fn start_running_server(
    tunnel: &Arc<ExecutorTunnel>,
    script: &mut ScriptedExecutor,
) -> (RemoteProcess, u64) {
    let asking = {
        let tunnel = Arc::clone(tunnel);
        spawn_task(async move { tunnel.start_server("files", test_deadline()).await })
    };
    let ExecutorFrame::StartServer { stream, start } = script.next_frame().await else {
        panic!("nothing is started");
    };
    assert_eq!(
        (&*start.server, start.credit),
        ("files", SERVER_WINDOW_BYTES)
    );
    script
        .send_frame(ExecutorFrame::ServerStarted { stream, pid: 42 })
        .await;
    (wait_bounded(asking).await.unwrap().unwrap(), stream)
}

/// Reconnects a session with these marks of the executor; returns the open frame as well.
async fn reconnect_session(
    session: &Arc<ExecutorSession>,
    marks: &[StreamMark],
) -> (Arc<ExecutorTunnel>, ScriptedExecutor, OpenSession) {
    let (gateway, mut script) = socket_pair(test_limits()).await;
    let opening = async {
        script.send_frame(ExecutorFrame::Hello(test_hello())).await;
        let ExecutorFrame::OpenSession(open) = script.next_frame().await else {
            panic!("no open");
        };
        let (resumed, marks) = (true, marks.to_vec());
        script
            .send_frame(ExecutorFrame::OpenSessionReply(OpenSessionReply {
                is_resumed: resumed,
                marks,
            }))
            .await;
        (script, open)
    };
    let (tunnel, (script, open)) = tokio::join!(open_tunnel(gateway, Arc::clone(session)), opening);
    (tunnel.unwrap(), script, open)
}

fn exit_frame(stream: u64, how: &str, number: u64) -> ExecutorFrame {
    let exit = ServerExit {
        cause: how.into(),
        number: Some(number),
    };
    ExecutorFrame::ServerExit { stream, exit }
}

#[tokio::test]
async fn output_gap_ends_only_that_server() {
    for wrong in [data_frame(1, 4, b"gap"), data_frame(1, 0, b"again")] {
        let (tunnel, mut script) = tunnel_pair().await;
        let (mut broken, one) = start_running_server(&tunnel, &mut script).await;
        let (mut whole, two) = start_running_server(&tunnel, &mut script).await;
        assert_eq!((one, two), (1, 2));
        script
            .socket
            .sender
            .send(data_frame(one, 0, b"abc"))
            .await
            .unwrap();
        script.socket.sender.send(wrong).await.unwrap();
        let mut said = String::new();
        let streams = broken.take_streams();
        let mut stdout = streams.stdout.unwrap();
        wait_bounded(stdout.read_to_string(&mut said))
            .await
            .unwrap();
        assert_eq!(said, "abc");
        assert_eq!(wait_bounded(broken.wait()).await, LinkExit::Gone);
        // The executor is told to end the server.
        assert_eq!(
            script.next_frame().await,
            ExecutorFrame::Cancel { stream: one }
        );
        script
            .socket
            .sender
            .send(data_frame(two, 0, b"xyz"))
            .await
            .unwrap();
        script.send_frame(exit_frame(two, "status", 0)).await;
        assert_eq!(wait_bounded(whole.wait()).await, LinkExit::Status(0));
    }
}

#[tokio::test]
async fn excess_output_ends_only_that_server() {
    let (tunnel, mut script) = tunnel_pair().await;
    let (mut process, stream) = start_running_server(&tunnel, &mut script).await;
    let piece = vec![b'x'; 32 * 1024];
    let mut offset = 0;
    while offset <= SERVER_WINDOW_BYTES {
        script
            .socket
            .sender
            .send(data_frame(stream, offset, &piece))
            .await
            .unwrap();
        offset += piece.len() as u64;
    }
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Gone);
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    let mut read = Vec::new();
    let mut stdout = process.take_streams().stdout.unwrap();
    wait_bounded(stdout.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read.len() as u64, SERVER_WINDOW_BYTES);
    start_running_server(&tunnel, &mut script).await;
}

#[tokio::test]
async fn unacknowledged_input_is_resent_on_resume() {
    let session = new_session(FlowLimits::default());
    let (tunnel, mut script, _) = reconnect_session(&session, &[]).await;
    let (mut process, stream) = start_running_server(&tunnel, &mut script).await;
    let mut stdin = process.take_streams().stdin.unwrap();
    let writing = spawn_task(async move {
        let bytes = vec![b'x'; usize::try_from(SERVER_WINDOW_BYTES).unwrap() + 5];
        stdin.write_all(&bytes).await.unwrap();
        stdin
    });
    let mut came = 0;
    while came < SERVER_WINDOW_BYTES {
        let ExecutorFrame::Data { offset, bytes, .. } = script.next_frame().await else {
            panic!("no input");
        };
        assert_eq!(offset, came);
        came += bytes.len() as u64;
    }
    assert_eq!(came, SERVER_WINDOW_BYTES);
    assert!(!writing.is_finished());
    // After credit, the rest is sent from the executor's position.
    drop((tunnel, script));
    let received = SERVER_WINDOW_BYTES - 7;
    let mark = StreamMark {
        stream,
        received,
        credit: 12,
    };
    let (_tunnel, mut script, open) = reconnect_session(&session, &[mark]).await;
    let ours = StreamMark {
        stream,
        received: 0,
        credit: SERVER_WINDOW_BYTES,
    };
    assert_eq!(open.marks, [ours]);
    let mut rest = Vec::new();
    while rest.len() < 12 {
        let ExecutorFrame::Data { offset, bytes, .. } = script.next_frame().await else {
            panic!("no input");
        };
        assert_eq!(offset, received + rest.len() as u64);
        rest.extend_from_slice(&bytes);
    }
    assert_eq!(rest, b"xxxxxxxxxxxx");
    drop(wait_bounded(writing).await.unwrap());
    let end = ExecutorFrame::End {
        stream,
        offset: SERVER_WINDOW_BYTES + 5,
        trailers: Bytes::new(),
    };
    assert_eq!(script.next_frame().await, end);
}

#[tokio::test]
async fn executor_with_lost_state_cannot_resume() {
    let session = new_session(FlowLimits::default());
    let (tunnel, mut script, _) = reconnect_session(&session, &[]).await;
    let (mut process, stream) = start_running_server(&tunnel, &mut script).await;
    drop((tunnel, script));
    // The executor claims input that was never written.
    let mark = StreamMark {
        stream,
        received: 9,
        credit: 9,
    };
    let (_tunnel, mut script, _) = reconnect_session(&session, &[mark]).await;
    assert_eq!(wait_bounded(process.wait()).await, LinkExit::Away);
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
}

#[tokio::test]
async fn lost_stop_is_repeated_on_resume() {
    let session = new_session(FlowLimits::default());
    let (tunnel, mut script, _) = reconnect_session(&session, &[]).await;
    let (process, stream) = start_running_server(&tunnel, &mut script).await;
    let mut process = process;
    let stopping = spawn_task(async move {
        let exit = process.stop(bowline_link::StdioLimits::default()).await;
        (process, exit)
    });
    let at_once = false;
    assert_eq!(
        script.next_frame().await,
        ExecutorFrame::StopServer { stream, at_once }
    );
    drop((tunnel, script));
    // The stop does not wait for the connection, and drops the process.
    let (process, exit) = wait_bounded(stopping).await.unwrap();
    assert_eq!(exit, None);
    let mark = StreamMark {
        stream,
        received: 0,
        credit: 1,
    };
    let (tunnel, mut script, _) = reconnect_session(&session, &[mark]).await;
    assert_eq!(
        script.next_frame().await,
        ExecutorFrame::StopServer { stream, at_once }
    );
    drop(process);
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    script
        .socket
        .sender
        .send(data_frame(stream, 0, b"late"))
        .await
        .unwrap();
    script.send_frame(exit_frame(stream, "status", 1)).await;
    let (mut next, stream) = start_running_server(&tunnel, &mut script).await;
    script.send_frame(exit_frame(stream, "signal", 9)).await;
    assert_eq!(wait_bounded(next.wait()).await, LinkExit::Signal(9));
}

#[tokio::test]
async fn failed_start_reports_reason_dropped_is_cancelled() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asking = {
        let tunnel = Arc::clone(&tunnel);
        spawn_task(async move { tunnel.start_server("files", test_deadline()).await })
    };
    let ExecutorFrame::StartServer { stream, .. } = script.next_frame().await else {
        panic!("nothing is started");
    };
    let fault = StreamFault {
        code: StreamFaultCode::UnknownServer,
        execution: ExecutionStatus::NotStarted,
        reason: "there is none".into(),
    };
    script
        .send_frame(ExecutorFrame::Fault { stream, fault })
        .await;
    let Err(LinkError::RemoteFailure(failure)) = wait_bounded(asking).await.unwrap() else {
        panic!("it runs");
    };
    assert_eq!(&*failure.reason, "there is none");
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
    let asking = {
        let tunnel = Arc::clone(&tunnel);
        spawn_task(async move { tunnel.start_server("files", test_deadline()).await })
    };
    let ExecutorFrame::StartServer { stream, .. } = script.next_frame().await else {
        panic!("nothing is started");
    };
    asking.abort();
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
}
