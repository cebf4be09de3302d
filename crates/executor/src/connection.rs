//! Sends requests through an executor: a process in another network that performs HTTP requests
//! and runs servers for the gateway.
//!
//! Layers above do not see the difference: a server behind an executor is reached through the same
//! [`HttpClient`](bowline_link::http::http_client::HttpClient) as any server.

mod exec_server;
mod executor_session;
mod exit_codec;
mod fault_map;
mod frame_writer;
mod http_exchange;
pub mod remote_server;
mod tunnel;
mod waker_slot;

use std::fmt;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_link::http::http_client::{HttpError, HttpRequest, HttpResponse, SendOptions};
use bowline_link::websocket::DisconnectReason;

use crate::frames::SecretHeader;

pub use bowline_link::http::remote_failure::{EGRESS_DENIED, EXECUTOR_BUSY};
pub use bowline_link::http::to_link_error;
pub use exec_server::{
    ExecServerConnection, ExecServerOpenError, socket_limits as exec_server_limits,
};
pub use executor_session::{ExecutorSession, SessionAttachment};
pub use exit_codec::{decode_exit, encode_exit};
pub use fault_map::{EXECUTOR_AWAY, EXECUTOR_REFUSED, away_error, to_http_error};
pub use frame_writer::FrameWriter;
pub use remote_server::RemoteProcess;
pub use tunnel::{ExecutorHandshakeError, ExecutorTunnel, receive_hello};

/// One HTTP request for a server.
#[derive(Debug)]
pub struct ExecutorRequest<'a> {
    /// Server name in this gateway.
    pub server: &'a str,
    /// The request.
    pub request: HttpRequest<'a>,
    /// Headers with a secret that only the executor can insert.
    pub secret_headers: &'a [SecretHeader],
}

/// Software, servers and secrets that an executor announced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorInfo {
    /// Software and version.
    pub software: Arc<str>,
    /// Servers that the executor can start.
    pub servers: Vec<Arc<str>>,
    /// Names of the secrets that the executor can insert.
    pub secrets: Vec<Arc<str>>,
}

/// Traffic counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorTraffic {
    /// Open streams.
    pub streams: u64,
    /// Streams opened so far.
    pub opened: u64,
    /// Body bytes sent to the executor.
    pub sent_bytes: u64,
    /// Body bytes received from the executor.
    pub received_bytes: u64,
}

/// One connection with an executor, for any executor protocol.
pub trait ExecutorConnection: fmt::Debug + Send + Sync {
    /// Sends a request and waits for the response head. Dropping the future, or the response body,
    /// cancels the request at the executor.
    fn send_request<'a>(
        &'a self,
        exec_request: ExecutorRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>>;

    /// Sends a request and waits for the whole response; fails if the body exceeds `bytes_max`.
    fn fetch_whole<'a>(
        &'a self,
        exec_request: ExecutorRequest<'a>,
        wait: SendOptions<'a>,
        bytes_max: usize,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let mut response = self.send_request(exec_request, wait).await?;
            response.body = response.body.read_whole(bytes_max).await?.into();
            Ok(response)
        })
    }

    /// Returns the announcement of the executor.
    fn info(&self) -> &ExecutorInfo;

    /// Returns the traffic counters.
    fn traffic(&self) -> ExecutorTraffic;

    /// Returns the cause of the disconnect, or `None` while connected.
    fn disconnect_reason(&self) -> Option<DisconnectReason>;

    /// Waits for the end of the connection.
    fn wait_closed(&self) -> BoxFuture<'_, DisconnectReason>;

    /// Closes the connection.
    fn close(&self, code: u16, reason: &str);
}
