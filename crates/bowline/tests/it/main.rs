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

mod agents;
mod asks;
mod audit;
mod batches;
mod broker;
mod budgets;
mod cache;
mod canaries;
mod command_line;
mod conditions;
mod contexts;
mod credentials;
mod discover;
mod door;
mod embedded;
mod events;
mod executor;
mod first_call;
mod fixture_http;
mod freeze;
mod harness;
mod http_servers;
mod isolation;
mod kill;
mod lifecycle;
mod listen;
mod menus;
mod metrics;
mod modern;
mod old_sse;
mod outbox;
mod own_links;
mod parked;
mod peers;
mod pins;
mod props;
mod recovery;
mod relisting;
mod reload;
mod robust;
mod roles;
mod roundtrip;
mod runaway;
mod search;
mod sec;
mod shim;
mod status;
mod stdio_servers;
mod stdio_tools;
mod storm;
mod streams;
mod telemetry;
mod terminal;
mod tokens;
mod too_much;
mod worker;
mod writes;
