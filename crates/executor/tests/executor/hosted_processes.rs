//! Servers on an executor: real processes, over connections that are cut.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start tasks and read clocks"
)]

mod process_cuts;
mod process_ends;
mod stdio_links;
