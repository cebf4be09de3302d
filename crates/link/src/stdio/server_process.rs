//! Interface to a server process, local or remote.
//!
//! A stdio link needs only these traits, and does not know whether the process is a local child or
//! runs at an executor in another network.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bowline_core::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::{LinkConnectError, StdioLimits};
use crate::link::LinkExit;
use crate::process_usage::ProcessSet;

/// Starts the process of a server.
pub trait ProcessSpawner: fmt::Debug + Send + Sync {
    /// Process type.
    type ServerProcess: ServerProcess;

    /// Starts the server. Dropping the future, or an error, leaves no process behind.
    ///
    /// # Errors
    /// The process cannot be started before the deadline.
    fn spawn(
        &self,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Self::ServerProcess, LinkConnectError>>;
}

/// A running server process; a drop kills the process tree.
///
/// Stream types are associated types, so reads need no dynamic dispatch.
pub trait ServerProcess: fmt::Debug + Send + 'static {
    /// Input; a drop closes stdin.
    type RemoteStdin: AsyncWrite + Unpin + Send + 'static;
    /// Output.
    type RemoteStdout: AsyncRead + Unpin + Send + 'static;
    /// Error output.
    type RemoteStderr: AsyncRead + Unpin + Send + 'static;

    /// Takes the streams; a second call returns none.
    fn take_streams(
        &mut self,
    ) -> ProcessStreams<Self::RemoteStdin, Self::RemoteStdout, Self::RemoteStderr>;

    /// Returns the identity, usable while a task waits for the exit.
    fn identity(&self) -> Arc<dyn ProcessIdentity>;

    /// Waits for the exit. Cancel-safe.
    fn wait(&mut self) -> impl Future<Output = LinkExit> + Send;

    /// Stops the process gracefully: stdin is already closed, so the process gets time, then a
    /// termination request. Returns `None` if the process is still running.
    fn stop(&mut self, limits: StdioLimits) -> impl Future<Output = Option<LinkExit>> + Send;

    /// Kills the process tree.
    fn kill(&mut self) -> impl Future<Output = LinkExit> + Send;
}

/// Streams of a process.
#[derive(Debug)]
pub struct ProcessStreams<I, O, E> {
    /// Input.
    pub stdin: Option<I>,
    /// Output.
    pub stdout: Option<O>,
    /// Error output.
    pub stderr: Option<E>,
}

/// Identity of a process.
pub trait ProcessIdentity: fmt::Debug + Send + Sync {
    /// Returns the process id of the server itself. Valid after the first response: by then, a
    /// reaper has started the server.
    fn pid(&self) -> u32;

    /// Returns the server's processes, if on this machine.
    fn processes(&self) -> Option<ProcessSet>;
}
