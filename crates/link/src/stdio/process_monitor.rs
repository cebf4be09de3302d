//! Monitors a process until the exit, and fails pending requests afterwards.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StdioLimits;
use super::server_process::ServerProcess;
use crate::link::LinkExit;
use crate::rpc::{RpcConnection, StopMode};

/// Expected exit time of a process after the end of all streams.
pub(crate) const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Time to read the remaining output of an exited process.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Monitors a process until the exit and the end of all output, as reported by `streams`.
pub(super) async fn monitor_process<P: ServerProcess>(
    mut process: P,
    peer: Arc<RpcConnection>,
    streams: Vec<oneshot::Receiver<()>>,
    limits: StdioLimits,
) {
    let guard = RpcFinishGuard(peer);
    let peer = &guard.0;
    let first = tokio::select! {
        biased;
        exit = process.wait() => Ok(exit),
        reason = peer.wait_ending() => Err(reason),
    };
    let exit = match first {
        Ok(exit) => exit,
        Err((LinkExit::Closed, _)) => match timeout(EXIT_GRACE, process.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                peer.fail_pending(LinkExit::Closed);
                stop_process(&mut process, peer, limits).await;
                LinkExit::Closed
            }
        },
        Err((LinkExit::Overrun, _)) => {
            process.kill().await;
            LinkExit::Overrun
        }
        Err(_) => stop_process(&mut process, peer, limits).await,
    };
    peer.begin_shutdown(exit, StopMode::Immediate);
    // Responses sent before the exit still count.
    let _ = timeout(DRAIN_GRACE, wait_streams(streams)).await;
    peer.finish(exit);
}

/// Stops the process gracefully, unless a kill is requested.
async fn stop_process<P: ServerProcess>(
    process: &mut P,
    peer: &RpcConnection,
    limits: StdioLimits,
) -> LinkExit {
    let stopped = tokio::select! {
        biased;
        gone = process.stop(limits) => gone,
        () = peer.wait_kill_requested() => None,
    };
    match stopped {
        Some(exit) => exit,
        None => process.kill().await,
    }
}

/// Finishes the connection when the monitor ends, in any case.
#[derive(Debug)]
struct RpcFinishGuard(Arc<RpcConnection>);

impl Drop for RpcFinishGuard {
    fn drop(&mut self) {
        self.0.finish(LinkExit::Gone);
    }
}

async fn wait_streams(streams: Vec<oneshot::Receiver<()>>) {
    for stream in streams {
        // The sender is only dropped, never used.
        let _ = stream.await;
    }
}
