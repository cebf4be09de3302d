//! The link's handle of a server process at an executor.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bowline_link::stdio::{ProcessIdentity, ProcessStreams, ServerProcess, StdioLimits};
use bowline_link::{LinkExit, ProcessSet};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::{RemoteServer, RemoteStage};

/// Longest delay of an exit report.
const REPORT_GRACE: Duration = Duration::from_secs(2);

/// A server process at an executor; dropping it kills the process.
#[derive(Debug)]
pub struct RemoteProcess {
    pub(super) server: Arc<RemoteServer>,
    pub(super) streams_taken: bool,
}

impl RemoteProcess {
    /// Waits for the exit; `None` if the connection is lost first.
    async fn wait_exit_or_disconnect(&self) -> Option<LinkExit> {
        let mut status = self.server.status.subscribe();
        let reached = status
            .wait_for(|now| !now.is_connected || matches!(now.stage, RemoteStage::Exited(..)))
            .await;
        match &reached.ok()?.stage {
            RemoteStage::Exited(exit, _) => Some(*exit),
            RemoteStage::Requested | RemoteStage::Running => None,
        }
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        self.server.finish(LinkExit::Gone, None);
        self.server.session.remove_stream(self.server.stream_id);
    }
}

impl ServerProcess for RemoteProcess {
    type RemoteStdin = RemoteStdin;
    type RemoteStdout = RemoteOutput;
    type RemoteStderr = RemoteOutput;

    fn take_streams(&mut self) -> ProcessStreams<RemoteStdin, RemoteOutput, RemoteOutput> {
        let were_taken = std::mem::replace(&mut self.streams_taken, true);
        let server = || (!were_taken).then(|| Arc::clone(&self.server));
        let output = |poll_chunk| {
            server().map(|server| RemoteOutput {
                server,
                poll_chunk,
                rest: Bytes::new(),
            })
        };
        ProcessStreams {
            stdin: server().map(RemoteStdin),
            stdout: output(RemoteServer::poll_stdout),
            stderr: output(RemoteServer::poll_stderr),
        }
    }

    fn identity(&self) -> Arc<dyn ProcessIdentity> {
        Arc::new(RemoteIdentity(Arc::clone(&self.server)))
    }

    async fn wait(&mut self) -> LinkExit {
        let mut status = self.server.status.subscribe();
        let reached = status
            .wait_for(|now| matches!(now.stage, RemoteStage::Exited(..)))
            .await;
        match reached.as_deref().map(|reached| &reached.stage) {
            Ok(RemoteStage::Exited(exit, _)) => *exit,
            Ok(RemoteStage::Requested | RemoteStage::Running) | Err(_) => LinkExit::Gone,
        }
    }

    async fn stop(&mut self, limits: StdioLimits) -> Option<LinkExit> {
        self.server.request_stop(false);
        let wait = limits.stop_stdin + limits.stop_term + REPORT_GRACE;
        timeout(wait, self.wait_exit_or_disconnect())
            .await
            .ok()
            .flatten()
    }

    async fn kill(&mut self) -> LinkExit {
        self.server.request_stop(true);
        match timeout(2 * REPORT_GRACE, self.wait_exit_or_disconnect()).await {
            Ok(Some(exit)) => exit,
            // The executor kills the process once its session is not resumed.
            Ok(None) => LinkExit::Away,
            Err(_) => LinkExit::Gone,
        }
    }
}

/// Identity of a remote process.
#[derive(Debug)]
struct RemoteIdentity(Arc<RemoteServer>);

impl ProcessIdentity for RemoteIdentity {
    fn pid(&self) -> u32 {
        self.0.lock().pid
    }

    fn processes(&self) -> Option<ProcessSet> {
        None
    }
}

/// Stdin of a remote process; dropping it sends the end of input.
#[derive(Debug)]
pub struct RemoteStdin(Arc<RemoteServer>);

impl AsyncWrite for RemoteStdin {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.close_stdin();
        Poll::Ready(Ok(()))
    }
}

impl Drop for RemoteStdin {
    fn drop(&mut self) {
        self.0.close_stdin();
    }
}

/// Output of a remote process: stdout or stderr.
#[derive(Debug)]
pub struct RemoteOutput {
    server: Arc<RemoteServer>,
    poll_chunk: PollChunk,
    /// The rest of a partly read chunk.
    rest: Bytes,
}

/// Polls for the next chunk of an output; `None` at the end.
type PollChunk = fn(&RemoteServer, &Context<'_>) -> Poll<Option<Bytes>>;

impl AsyncRead for RemoteOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            self.rest = ready!((self.poll_chunk)(&self.server, cx)).unwrap_or_default();
        }
        let count = self.rest.len().min(out.remaining());
        out.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}
