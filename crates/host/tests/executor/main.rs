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
