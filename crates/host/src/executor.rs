//! Tools in another network: executors that perform HTTP requests and run servers there.
//!
//! The gateway has [`Executors`], the registry of those that are connected, whether they joined or
//! were dialled. The **servant** is what runs inside an executor and does what it is asked.

mod engine;
mod offer;
mod placed;
mod registry;
mod servant;
mod servers;

pub use crate::credential::Credential;
pub use offer::{Egress, NoSecret, NoSecrets, Offer, OfferLimits, Secrets};
pub use registry::{DialSpec, ExecutorStatus, Executors, ExecutorsOptions, Porter, Protocol, Via};
pub use servant::{Servant, ServeError};
