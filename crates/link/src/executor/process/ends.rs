//! What a link holds of a server that an executor runs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::{Running, Stage};
use crate::link::Exit;
use crate::processes::Processes;
use crate::stdio::{Identity, Process, StdioLimits, Streams};

/// How long the word that a server is gone may be on its way.
const WORD_GRACE: Duration = Duration::from_secs(2);

/// A server that an executor runs; dropped, it is killed over there.
#[derive(Debug)]
pub struct Distant {
    pub(super) running: Arc<Running>,
    pub(super) are_streams_given: bool,
}

impl Distant {
    /// Waits until it is over, or the connection is lost: then nothing is returned.
    async fn over_or_cut(&self) -> Option<Exit> {
        let mut standing = self.running.standing.subscribe();
        let reached = standing
            .wait_for(|now| !now.is_connected || matches!(now.stage, Stage::Over(..)))
            .await;
        match &reached.ok()?.stage {
            Stage::Over(exit, _) => Some(*exit),
            Stage::Asked | Stage::Runs => None,
        }
    }
}

impl Drop for Distant {
    fn drop(&mut self) {
        self.running.end(Exit::Gone, None);
        self.running.session.remove(self.running.number);
    }
}

impl Process for Distant {
    type Stdin = Stdin;
    type Stdout = Stdout;
    type Stderr = Stderr;

    fn streams(&mut self) -> Streams<Stdin, Stdout, Stderr> {
        let given = std::mem::replace(&mut self.are_streams_given, true);
        let running = || (!given).then(|| Arc::clone(&self.running));
        Streams {
            stdin: running().map(Stdin),
            stdout: running().map(|running| Stdout(running, Bytes::new())),
            stderr: running().map(|running| Stderr(running, Bytes::new())),
        }
    }

    fn identity(&self) -> Arc<dyn Identity> {
        Arc::new(There(Arc::clone(&self.running)))
    }

    async fn wait(&mut self) -> Exit {
        let mut standing = self.running.standing.subscribe();
        let over = standing
            .wait_for(|now| matches!(now.stage, Stage::Over(..)))
            .await;
        match over.as_deref().map(|over| &over.stage) {
            Ok(Stage::Over(exit, _)) => *exit,
            Ok(Stage::Asked | Stage::Runs) | Err(_) => Exit::Gone,
        }
    }

    async fn stop(&mut self, limits: StdioLimits) -> Option<Exit> {
        self.running.stop(false);
        let wait = limits.stop_stdin + limits.stop_term + WORD_GRACE;
        timeout(wait, self.over_or_cut()).await.ok().flatten()
    }

    async fn kill(&mut self) -> Exit {
        self.running.stop(true);
        match timeout(2 * WORD_GRACE, self.over_or_cut()).await {
            Ok(Some(exit)) => exit,
            // The executor kills it once it is not asked for any more.
            Ok(None) => Exit::Away,
            Err(_) => Exit::Gone,
        }
    }
}

/// Who a process over there is.
#[derive(Debug)]
struct There(Arc<Running>);

impl Identity for There {
    fn pid(&self) -> u32 {
        self.0.lock().pid
    }

    fn processes(&self) -> Option<Processes> {
        None
    }
}

/// What a server over there reads; dropped, it reads the end.
#[derive(Debug)]
pub struct Stdin(Arc<Running>);

impl AsyncWrite for Stdin {
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

impl Drop for Stdin {
    fn drop(&mut self) {
        self.0.close_stdin();
    }
}

/// What a server over there answers, and of that a piece that was read in part.
#[derive(Debug)]
pub struct Stdout(Arc<Running>, Bytes);

impl AsyncRead for Stdout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.1.is_empty() {
            self.1 = ready!(self.0.poll_stdout(cx)).unwrap_or_default();
        }
        give(&mut self.1, out);
        Poll::Ready(Ok(()))
    }
}

/// What a server over there says beside, likewise.
#[derive(Debug)]
pub struct Stderr(Arc<Running>, Bytes);

impl AsyncRead for Stderr {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.1.is_empty() {
            self.1 = ready!(self.0.poll_stderr(cx)).unwrap_or_default();
        }
        give(&mut self.1, out);
        Poll::Ready(Ok(()))
    }
}

fn give(piece: &mut Bytes, out: &mut ReadBuf<'_>) {
    let count = piece.len().min(out.remaining());
    out.put_slice(piece.get(..count).unwrap_or_default());
    piece.advance(count);
}
