//! Sees a process through to its end, and tells all who wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::StdioLimits;
use super::process::Process;
use crate::link::Exit;
use crate::peer::{Peer, Stop};

/// A process whose streams have ended is expected to go within this time.
pub(crate) const EXIT_GRACE: Duration = Duration::from_millis(500);

/// What a gone process has left in its pipes is read within this time.
pub(crate) const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// Keeps a process until it is gone and what it said is read; `streams` tell when that is.
pub(super) async fn keep<P: Process>(
    mut process: P,
    peer: Arc<Peer>,
    streams: Vec<oneshot::Receiver<()>>,
    limits: StdioLimits,
) {
    let kept = Kept(peer);
    let peer = &kept.0;
    let first = tokio::select! {
        biased;
        exit = process.wait() => Ok(exit),
        reason = peer.ending() => Err(reason),
    };
    let exit = match first {
        Ok(exit) => exit,
        Err((Exit::Closed, _)) => match timeout(EXIT_GRACE, process.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                peer.fail(Exit::Closed);
                stop(&mut process, peer, limits).await;
                Exit::Closed
            }
        },
        Err((Exit::Overrun, _)) => {
            process.kill().await;
            Exit::Overrun
        }
        Err(_) => stop(&mut process, peer, limits).await,
    };
    peer.end(exit, Stop::AtOnce);
    // Answers that were given before the end still count.
    let _ = timeout(DRAIN_GRACE, all(streams)).await;
    peer.finish(exit);
}

/// Stops the process in order, unless there is haste.
async fn stop<P: Process>(process: &mut P, peer: &Peer, limits: StdioLimits) -> Exit {
    let gone = tokio::select! {
        biased;
        gone = process.stop(limits) => gone,
        () = peer.haste() => None,
    };
    match gone {
        Some(exit) => exit,
        None => process.kill().await,
    }
}

/// A link with a keeper; without one, nobody would tell those who wait.
#[derive(Debug)]
struct Kept(Arc<Peer>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.finish(Exit::Gone);
    }
}

async fn all(streams: Vec<oneshot::Receiver<()>>) {
    for stream in streams {
        // The other end is dropped, never used.
        let _ = stream.await;
    }
}
