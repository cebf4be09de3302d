//! Tools in another network: executors that perform HTTP requests and run servers there.
//!
//! The gateway has [`Executors`], the registry of those that are connected, whether they joined or
//! were dialled. The **servant** is what runs inside an executor and does what it is asked.

mod berth;
mod client;
mod engine;
mod listen;
mod offer;
mod placed;
mod reference;
mod registry;
mod run;
mod servant;
mod servers;

pub use crate::credential::Credential;
pub use berth::Berth;
pub use client::{
    BodyStream, ClientOptions, ConnectError, ExecutorClient, Head, Reply, Request, RequestError,
};
pub use listen::{Attend, Door, ListenError, listen, listen_with};
pub use offer::{Allowed, NoSecret, NoSecrets, Offer, OfferLimits, Secrets};
pub use reference::{Reference, as_exec_server, listen_as_exec_server};
pub use registry::{
    CLIENT_NAME, DialSpec, ExecutorStatus, Executors, ExecutorsOptions, Porter, Protocol, Via,
};
pub use run::{RunError, RunOptions, run, run_with};
pub use servant::{Servant, ServeError, Standing};
