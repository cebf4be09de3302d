//! What happens: catalog, call path and supervisors; starts every task. The library others embed.

pub mod allowlist;
pub mod beacon;
pub mod callpath;
pub mod catalog;
mod decide;
mod denials;
pub mod dial;
pub mod events;
pub mod guard;
pub mod host;
pub mod manifest;
pub mod memory;
pub mod pins;
pub mod ports;
pub mod spec;
mod standing;
pub mod supervisor;
pub mod tasks;

pub use host::{Applied, Changed, DISCOVER_MAX, Discovered, Host, HostLimits, Ports, Undiscovered};
