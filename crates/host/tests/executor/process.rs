//! Servers that an executor runs: real processes, over connections that are cut.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start tasks and read clocks"
)]

mod cuts;
mod ends;
mod links;
mod placed;
mod rig;
