//! Where Bowline meets people: edge servers, sessions, config, command line and API.

pub mod cli;
pub mod config;
pub mod state;
