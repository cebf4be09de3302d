//! Executor connections of the gateway, over real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod body_streams;
mod connection_end;
mod exec_server;
mod executor_cuts;
mod executor_handshake;
mod fake_worker;
mod flow;
mod frames;
mod process_resume;
mod scripted_executor;
mod tunnel_uploads;
