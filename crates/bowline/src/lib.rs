//! The `bowline` product: edge servers, sessions, config, command line and API.

pub mod assemble;
mod audit_export;
mod civil;
pub mod cli;
pub mod executor_offer;
pub mod file_pins;
pub mod gateway;
pub mod manifests;
pub mod telemetry;
pub mod worker;

pub use assemble::Gateway;
pub use gateway::{BindError, BoundGateway, SessionSelector};
