//! Executors, from the gateway's side, over real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod cuts;
mod ends;
mod exec_server;
mod flow;
mod frames;
mod greeting;
mod process;
mod script;
mod streams;
mod uploads;
mod worker;
