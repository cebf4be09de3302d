//! A server that is reached over HTTP.

pub mod client;
pub mod credentials;
pub mod endpoint;
pub mod hyper_client;
