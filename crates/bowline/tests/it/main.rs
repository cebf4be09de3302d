//! Drives the real binary from outside: sockets, processes and files, nothing mocked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests"
)]

mod asks;
mod batches;
mod canaries;
mod command_line;
mod door;
mod first_call;
mod fixture_http;
mod harness;
mod http_servers;
mod isolation;
mod kill;
mod metrics;
mod old_sse;
mod own_links;
mod peers;
mod props;
mod reload;
mod robust;
mod roundtrip;
mod sec;
mod shim;
mod stdio_servers;
mod stdio_tools;
mod streams;
mod telemetry;
