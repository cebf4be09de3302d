//! What tests of several crates share. Without features: reports of omitted tests, memory, and
//! polls. `schema`: official MCP schemas. `process`: signals and exits. `runtime`: bounded waits,
//! clocks, tasks and sockets of asynchronous tests. `broker` and `executor`: rigs with a real end
//! and a scripted end. `host`: scripted servers behind a host, with a record of every action, and a
//! hub. `gateway`: the gateway's binary in a process, servers and networks around it, and clients.
//!
//! Time is tokio's: a test with a paused clock controls time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[cfg(feature = "runtime")]
mod clocks;
#[cfg(all(feature = "gateway", target_os = "linux"))]
pub mod gateway;
#[cfg(feature = "schema")]
mod mcp_schema;
mod memory;
mod omitted_test;
mod polls;
#[cfg(all(feature = "process", target_os = "linux"))]
mod process;
#[cfg(feature = "executor")]
pub mod process_rig;
#[cfg(feature = "executor")]
pub mod registry_gateway;
#[cfg(feature = "broker")]
pub mod scripted_broker;
#[cfg(feature = "broker")]
pub mod serve_rig;
#[cfg(feature = "host")]
mod sim;
#[cfg(feature = "runtime")]
mod sockets;
#[cfg(feature = "runtime")]
mod tasks;
#[cfg(feature = "runtime")]
mod waits;
mod workspace;

#[cfg(feature = "runtime")]
pub use clocks::{ManualClock, PausedClock};
#[cfg(feature = "schema")]
pub use mcp_schema::McpSchema;
pub use memory::{anonymous_bytes, resident_bytes};
pub use omitted_test::report_omitted;
pub use polls::{PollPace, WAIT_MAX, wait_until, wait_until_at};
#[cfg(all(feature = "process", target_os = "linux"))]
pub use process::{is_alive, poll_exit, send_signal, wait_process_exit};
#[cfg(feature = "host")]
pub use sim::*;
#[cfg(feature = "runtime")]
pub use sockets::{
    RawUpstream, listen_on_loopback, read_bytes, read_head, tcp_pair, wait_closed, write_bytes,
};
#[cfg(feature = "runtime")]
pub use tasks::{DetachedSpawner, JoiningSpawner, block_on, spawn_task};
#[cfg(feature = "runtime")]
pub use waits::{
    advance_clock, deadline_after, poll_for, poll_until, run_until_idle, test_deadline,
    wait_bounded,
};
pub use workspace::workspace_root;
