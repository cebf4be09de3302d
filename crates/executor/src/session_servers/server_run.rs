//! Runs one server process, from the start to the end of the process tree.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::display_chain;
use bowline_link::LinkExit;
use bowline_link::stdio::{ProcessIdentity, ServerProcess, StdioSpec};

use crate::frames::{DATA_BYTES_MAX, StreamFaultCode};
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::hosted_server::{HostedServer, HostedServerEnd, StopMode};
use super::not_started_fault;

/// Read buffer for stderr.
const STDERR_CHUNK_BYTES: usize = 16 * 1024;

/// Time for a process to exit after stdout ended.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Time to drain the pipes of an exited process.
const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Runs a server process and reports the end to the gateway.
pub(super) async fn run_server(server: Arc<HostedServer>, spec: StdioSpec) {
    let mut process = match spec.start().await {
        Ok(process) => process,
        Err(error) => {
            tracing::warn!(
                server = %spec.server,
                error = %display_chain(&error),
                "server start failed"
            );
            // The cause is local; the gateway gets a general reason.
            let reason = "the executor cannot run it; its log tells why";
            return server.report_end(HostedServerEnd::Failed(not_started_fault(
                StreamFaultCode::Unreachable,
                reason,
            )));
        }
    };
    let identity = process.identity();
    server.report_started(identity.pid());
    let streams = process.take_streams();
    let (output_done, mut is_output_over) = oneshot::channel::<()>();
    let (broken, mut is_input_broken) = oneshot::channel::<()>();
    let output = async {
        if let Some(stdout) = streams.stdout {
            read_output(&server, stdout, &*identity).await;
        }
        drop(output_done);
    };
    let errors = async {
        if let Some(stderr) = streams.stderr {
            read_stderr(&server, stderr).await;
        }
    };
    let input = async {
        if let Some(stdin) = streams.stdin {
            write_input(&server, stdin, broken).await;
        }
    };
    let waiting = wait_exit(
        &server,
        &mut process,
        &spec,
        &mut is_output_over,
        &mut is_input_broken,
    );
    let exit = drive_process(&server, waiting, output, errors, input).await;
    server.finish_output();
    server.report_end(HostedServerEnd::Exited(exit));
}

/// Drives all parts until the process exited and the remaining output is forwarded.
async fn drive_process(
    server: &HostedServer,
    waiting: impl Future<Output = LinkExit>,
    output: impl Future<Output = ()>,
    errors: impl Future<Output = ()>,
    input: impl Future<Output = ()>,
) -> LinkExit {
    let mut waiting = std::pin::pin!(waiting);
    let mut reading = std::pin::pin!(async {
        tokio::join!(output, errors);
    });
    let mut input = std::pin::pin!(input);
    let (mut is_read, mut is_fed) = (false, false);
    let exit = loop {
        tokio::select! {
            biased;
            exit = &mut waiting => break exit,
            () = &mut reading, if !is_read => is_read = true,
            () = &mut input, if !is_fed => is_fed = true,
        }
    };
    while !is_read {
        let left = timeout(DRAIN_GRACE, &mut reading).await;
        // Output without credit is waited for; a pipe held open by a descendant is not.
        is_read = left.is_ok() || !server.is_output_held();
    }
    exit
}

/// Waits for the process to exit, and stops the process on request.
async fn wait_exit(
    server: &HostedServer,
    process: &mut impl ServerProcess,
    spec: &StdioSpec,
    is_output_over: &mut oneshot::Receiver<()>,
    is_input_broken: &mut oneshot::Receiver<()>,
) -> LinkExit {
    enum FirstEvent {
        Exited(LinkExit),
        StopRequested,
        StreamsClosed,
    }
    let first = tokio::select! {
        biased;
        exit = process.wait() => FirstEvent::Exited(exit),
        () = server.wait_stop(StopMode::Graceful) => FirstEvent::StopRequested,
        _ = is_output_over => FirstEvent::StreamsClosed,
        Ok(()) = is_input_broken => FirstEvent::StreamsClosed,
    };
    match first {
        FirstEvent::Exited(exit) => exit,
        FirstEvent::StopRequested => stop_process(server, process, spec).await,
        FirstEvent::StreamsClosed => match timeout(EXIT_GRACE, process.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                server.finish_output();
                stop_process(server, process, spec).await;
                LinkExit::Closed
            }
        },
    }
}

/// Stops the process gracefully, unless an immediate stop is requested.
async fn stop_process(
    server: &HostedServer,
    process: &mut impl ServerProcess,
    spec: &StdioSpec,
) -> LinkExit {
    let exit = tokio::select! {
        biased;
        gone = process.stop(spec.limits) => gone,
        () = server.wait_stop(StopMode::Immediate) => None,
    };
    match exit {
        Some(exit) => exit,
        None => process.kill().await,
    }
}

/// Writes input to the process; closes stdin at the end of input or on a stop.
async fn write_input(
    server: &HostedServer,
    mut stdin: impl AsyncWrite + Unpin,
    broken: oneshot::Sender<()>,
) {
    let feeding = async {
        while let Some(piece) = server.next_input().await {
            if stdin.write_all(&piece).await.is_err() || stdin.flush().await.is_err() {
                // The process closed stdin and is still running.
                let _ = broken.send(());
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = feeding => {}
        () = server.wait_stop(StopMode::Graceful) => {}
    }
}

/// Reads stdout, within the gateway's credit.
async fn read_output(
    server: &HostedServer,
    mut stdout: impl AsyncRead + Unpin,
    identity: &dyn ProcessIdentity,
) {
    let mut buffer = BytesMut::new();
    let mut is_first = true;
    loop {
        let room = server.wait_output_room().await;
        if room == 0 {
            return;
        }
        buffer.clear();
        buffer.reserve(DATA_BYTES_MAX);
        let mut part = (&mut stdout).take(u64::try_from(room).unwrap_or(u64::MAX));
        if !matches!(part.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
        if std::mem::take(&mut is_first) {
            // By now a reaper has started the server, so the pid is final.
            server.report_started(identity.pid());
        }
        server.send_output(&buffer);
    }
}

/// Reads stderr until the end.
async fn read_stderr(server: &HostedServer, mut stderr: impl AsyncRead + Unpin) {
    let mut chunk = vec![0; STDERR_CHUNK_BYTES];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        server.send_stderr(chunk.get(..length).unwrap_or_default());
    }
}
