//! Links: live connections to MCP servers over stdio, HTTP and executors.
//!
//! The features `http`, `websocket` and `sandbox` are on by default; stdio needs none of them.

mod child_limits;
mod demux;
pub mod endpoint_address;
pub mod http;
pub mod link;
mod modern;
mod process_mark;
mod process_usage;
mod read_throttle;
#[cfg(all(target_os = "linux", feature = "sandbox"))]
pub mod reaper;
mod rpc;
pub mod sandbox;
pub mod stderr;
pub mod stdio;
#[cfg(feature = "websocket")]
pub mod websocket;

pub use bowline_wire::mcp::Revision;
pub use child_limits::ChildLimits;
pub use demux::{CLIENT_WAIT_MAX, RelayError, relay_input_requests, required_capability};
pub use link::{
    CallerIdentity, IdempotencyHeader, InFlightGuard, InputRequestError, LARGE_BYTES_MAX,
    LargeResponseLimits, Link, LinkError, LinkEvent, LinkExit, LinkRequest, NotSentReason,
    ParamRename, ServerInfo,
};
pub use modern::ListenFilter;
pub use process_mark::{GatewayInstance, MARK_VARIABLE, SweepReport, end_instances};
pub use process_usage::{ProcessSet, ProcessUsage};
pub use stderr::{LogLine, LogSequencer, StderrLimits, StderrLog};
pub use stdio::{
    ClientInfo, EraNegotiation, LinkConnectError, ProcessSpawner, ReaperCommand, ServerProcess,
    StdioLimits, StdioOptions, StdioSpec, connect, connect_process,
};
