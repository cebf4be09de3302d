//! The door to what makes and keeps the process of a server, wherever it runs.
//!
//! A link over standard streams asks for no more than this, so that it does not know whether the
//! process is a child of ours or one that an executor runs in another network.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::{ConnectError, StdioLimits};
use crate::link::{BoxFuture, Exit};
use crate::processes::Processes;

/// Makes the process of a server.
pub trait Spawn: fmt::Debug + Send + Sync {
    /// What it makes.
    type Process: Process;

    /// Starts the server. Where the future is dropped, or fails, nothing is left behind.
    ///
    /// # Errors
    /// It cannot be started, or not before the deadline.
    fn spawn(&self, deadline: Instant) -> BoxFuture<'_, Result<Self::Process, ConnectError>>;
}

/// A running process of a server; dropped, it is killed with all it started.
///
/// The types of its streams are known, so that nothing is looked up for each read.
pub trait Process: fmt::Debug + Send + 'static {
    /// What it reads; dropped, it reads the end.
    type Stdin: AsyncWrite + Unpin + Send + 'static;
    /// What it answers.
    type Stdout: AsyncRead + Unpin + Send + 'static;
    /// What it says beside.
    type Stderr: AsyncRead + Unpin + Send + 'static;

    /// Gives its streams away; those that were given away are not given again.
    fn streams(&mut self) -> Streams<Self::Stdin, Self::Stdout, Self::Stderr>;

    /// Returns what tells who it is, also while others wait for its end.
    fn identity(&self) -> Arc<dyn Identity>;

    /// Waits until it is gone. Nothing is lost where this is dropped before it returns.
    fn wait(&mut self) -> impl Future<Output = Exit> + Send;

    /// Stops it in order: its stdin is closed already, so it is given time, and then told. Returns
    /// nothing where it is still there after that.
    fn stop(&mut self, limits: StdioLimits) -> impl Future<Output = Option<Exit>> + Send;

    /// Ends it at once, with all it started.
    fn kill(&mut self) -> impl Future<Output = Exit> + Send;
}

/// The streams of a process.
#[derive(Debug)]
pub struct Streams<I, O, E> {
    /// What it reads.
    pub stdin: Option<I>,
    /// What it answers.
    pub stdout: Option<O>,
    /// What it says beside.
    pub stderr: Option<E>,
}

/// Who a process is.
pub trait Identity: fmt::Debug + Send + Sync {
    /// Returns the process of the server itself. To be asked once it has answered something: a
    /// reaper has started its server by then.
    fn pid(&self) -> u32;

    /// Returns the server's processes, where they are on this machine.
    fn processes(&self) -> Option<Processes>;
}
