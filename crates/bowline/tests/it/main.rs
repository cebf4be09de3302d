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
mod api_shapes;
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
mod dedicated_links;
mod discover;
mod embedded;
mod events;
mod executor;
mod faulty_servers;
mod first_call;
mod fixture_http;
mod freeze;
mod http_edge;
mod http_servers;
mod isolation;
mod kill;
mod legacy_sse;
mod lifecycle;
mod listen;
mod metrics;
mod modern;
mod outage_lists;
mod outbox;
mod parked;
mod peers;
mod pins;
mod recovery;
mod relisting;
mod reload;
mod request_limits;
mod roles;
mod roundtrip;
mod runaway;
mod search;
mod sec;
mod server_requests;
mod shim;
mod status;
mod stdio_servers;
mod stdio_tools;
mod stimulus;
mod storm;
mod streams;
mod telemetry;
mod terminal;
mod test_servers;
mod tokens;
mod worker;
mod writes;
