//! Tools in another network: executors that perform HTTP requests and run servers there.
//!
//! The gateway has an [`ExecutorRegistry`] of connected executors, joined or dialled. The
//! [`ExecutorService`] runs inside an executor and performs the gateway's requests.

mod exec_server_adapter;
mod executor_client;
mod executor_http_client;
mod executor_listener;
mod executor_service;
mod executor_spawner;
mod http_egress;
mod join_gateway;
mod offer;
mod registry;
mod session_servers;

pub use bowline_runtime::CredentialSource;
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
pub use registry::{
    CLIENT_NAME, DialDirection, DialSpec, ExecutorAuthenticator, ExecutorProtocol,
    ExecutorRegistry, ExecutorRegistryOptions, ExecutorStatus,
};
