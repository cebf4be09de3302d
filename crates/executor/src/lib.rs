//! Tools in another network: executors that perform HTTP requests and run servers there.
//!
//! The gateway has an [`ExecutorRegistry`] of connected executors, joined or dialled. The
//! [`ExecutorService`] runs inside an executor and performs the gateway's requests.

pub mod connection;
mod events;
mod exec_server_adapter;
pub mod execserver;
mod executor_client;
mod executor_http_client;
mod executor_listener;
mod executor_service;
mod executor_spawner;
pub mod flow;
pub mod frames;
mod http_egress;
mod join_gateway;
mod offer;
mod reassembly;
mod refusal;
mod registry;
mod resume;
mod session_servers;

pub use bowline_runtime::CredentialSource;
pub use events::ExecutorEvents;
pub use exec_server_adapter::{ExecServerAdapter, listen_as_exec_server, with_exec_server_limits};
pub use executor_client::{
    BodyStream, ExecutorClient, ExecutorClientOptions, ExecutorConnectError, ExecutorHttpRequest,
    ExecutorRequestError, ExecutorResponse, ExecutorResponseHead,
};
pub use executor_listener::{ConnectionHandler, ListenAuth, ListenError, listen, listen_with};
pub use executor_service::{ExecutorService, ServiceError, ServiceStatus};
pub use executor_spawner::ExecutorSpawner;
pub use join_gateway::{ExecutorRunError, ExecutorRunOptions, run_executor, run_executor_with};
pub use offer::{
    EgressRules, ExecutorLimits, ExecutorOffer, ExecutorSecrets, NoSecrets, SecretError,
};
pub use refusal::ExecutorRefusal;
pub use registry::{
    CLIENT_NAME, DialDirection, DialSpec, ExecutorAuthenticator, ExecutorProtocol,
    ExecutorRegistry, ExecutorRegistryOptions, ExecutorStatus,
};
