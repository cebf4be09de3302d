//! Types of `/api/v1`: every request and response once, written by the gateway and read by clients
//! such as the command line.
//!
//! Field names are the names on the wire. Responses tolerate both directions of version skew:
//! unknown fields are ignored, and missing fields take their default. Requests and most queries are
//! strict, so that a misspelled field is an error and not a silent default.

pub mod audit_trail;
pub mod broker;
pub mod calls;
pub mod error;
pub mod events;
pub mod executors;
pub mod logs;
pub mod outbox;
pub mod pins;
pub mod readiness;
pub mod reload;
pub mod roles;
pub mod servers;
pub mod sessions;
pub mod status;
pub mod tokens;
pub mod tools;

use std::borrow::Cow;

/// Value of the field `v` in every response. Fields may be added under one version; a removed or
/// changed field raises the version.
pub const VERSION: u8 = 1;

/// A word out of a set that may grow. Clients must accept words that they do not know.
pub type Word = Cow<'static, str>;

const fn is_zero(number: &u64) -> bool {
    *number == 0
}
