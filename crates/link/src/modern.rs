//! Modern-era support shared by all transports: detection of modern servers, translation of
//! requests between eras, rounds of input requests for legacy clients, and change streams.
//!
//! A link translates by the eras of request and server. Same era: sent unchanged. Modern request,
//! legacy server: [`era_params::to_legacy`]. Legacy request, modern server:
//! [`input_rounds::request_with_rounds`], which translates with [`era_params::to_modern`] and
//! repeats the request as often as the server requires input. A request and its response always
//! state the era on the wire.

pub(crate) mod change_listen;
pub(crate) mod era_discovery;
pub(crate) mod era_params;
mod input_requests;
pub(crate) mod input_rounds;
mod legacy_tasks;

pub use change_listen::ListenFilter;
