//! What carries requests through an executor: a process in another network that performs them.
//!
//! Nothing above knows where bytes leave from: a server whose requests go through an executor is
//! reached by the same [`HttpClient`](crate::http::client::HttpClient) as any other.

mod exchange;
mod exec_server;
mod exits;
mod faults;
pub mod process;
mod session;
mod tunnel;
mod voice;
mod waiter;

use std::fmt;
use std::sync::Arc;

use bowline_wire::executor::Fill;

use crate::http::client::{HttpError, Outgoing, Response, Wait};
use crate::link::BoxFuture;
use crate::websocket::Ended;

pub use crate::http::road::trouble;
pub use exec_server::{ExecServer, OpenError, socket_limits as exec_server_limits};
pub use exits::{exit, exited};
pub use faults::{EGRESS_DENIED, EXECUTOR_AWAY, EXECUTOR_BUSY, EXECUTOR_REFUSED, away, told};
pub(crate) use faults::{denied, overflow};
pub use process::Distant;
pub use session::{Attached, Session};
pub use tunnel::{
    BROKE_PROTOCOL, CREDENTIAL_OVER, FENCED, GOING_DOWN, GreetError, REFUSED, Tunnel, greet,
};
pub use voice::Voice;

/// One request for one server.
#[derive(Debug)]
pub struct Errand<'a> {
    /// The server that it is for, as this gateway calls it.
    pub server: &'a str,
    /// The request.
    pub request: Outgoing<'a>,
    /// Headers that only the executor can complete.
    pub fills: &'a [Fill],
}

/// What an executor said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Its software and version.
    pub software: Arc<str>,
    /// Servers that it can start.
    pub servers: Vec<Arc<str>>,
    /// Names of the secrets that it can fill in.
    pub secrets: Vec<Arc<str>>,
}

/// What a connection carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Streams that are open.
    pub streams: u64,
    /// Streams that were opened.
    pub opened: u64,
    /// Bytes of bodies towards the executor.
    pub sent_bytes: u64,
    /// Bytes of bodies from it.
    pub received_bytes: u64,
}

/// One connection with an executor, whichever protocol it speaks.
pub trait Carrier: fmt::Debug + Send + Sync {
    /// Has a request performed and waits for the head of the answer. Dropping the future, or the
    /// body of the answer, takes the request off the wire over there.
    fn carry<'a>(
        &'a self,
        errand: Errand<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>>;

    /// Has a request performed and waits for all of its answer; fails where its body is longer.
    fn fetch<'a>(
        &'a self,
        errand: Errand<'a>,
        wait: Wait<'a>,
        bytes_max: usize,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(async move {
            let mut response = self.carry(errand, wait).await?;
            response.body = response.body.whole(bytes_max).await?.into();
            Ok(response)
        })
    }

    /// Returns what the executor said of itself.
    fn offers(&self) -> &Offers;

    /// Returns what it carried.
    fn carried(&self) -> Carried;

    /// Returns how it ended, once it has.
    fn ended(&self) -> Option<Ended>;

    /// Waits for its end.
    fn over(&self) -> BoxFuture<'_, Ended>;

    /// Closes it.
    fn close(&self, code: u16, reason: &str);
}
