//! Where Bowline meets people: edge servers, sessions, config, command line and API.

pub mod assemble;
pub mod audit;
mod civil;
pub mod cli;
pub mod clients;
pub mod conditions;
pub mod config;
pub mod edge;
pub mod fixture;
pub mod gateway;
pub mod manifests;
pub mod pins;
pub mod reload;
pub mod secrets;
pub mod servant;
pub mod state;
pub mod telemetry;
pub mod tokens;
mod trial;
pub mod trust;
pub mod worker;

pub use assemble::Gateway;
pub use gateway::{BindError, Bound, Whom};
