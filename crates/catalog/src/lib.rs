//! What servers are and what they list: specifications, definitions, pins and the catalog.

pub mod catalog;
pub mod manifest;
pub mod pins;
pub mod result_secrets;
pub mod server_card;
pub mod spec;
