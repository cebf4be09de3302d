//! Servers of a host that only an executor reaches.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests start tasks and read clocks"
)]

mod hosted_servers;
mod mcp_over_executor;

// The rigs of the executor's own tests.
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../executor/tests/executor/executor_gateway/gateway_rig.rs"]
mod gateway_rig;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../executor/tests/executor/hosted_processes/process_rig.rs"]
mod process_rig;
