//! Executors: requests and servers in another network.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod connection_cuts;
mod exec_server_adapter;
mod executor_gateway;
mod executor_service;
mod hosted_processes;
