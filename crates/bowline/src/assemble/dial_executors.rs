//! Dials the executors named in a config.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bowline_host::executor::{
    CLIENT_NAME, CredentialSource, DialSpec, ExecutorProtocol, ExecutorRegistry,
};
use bowline_host::spec::ExecutorRoute;
use bowline_link::http::endpoint::HttpEndpoint;

use crate::telemetry::LogRedactor;
use bowline_config::{ConfigTemplate, ExecutorConfig, ViaConfig};

/// Default path of Bowline executors for gateways.
const EXECUTOR_PATH: &str = "/executor";

/// Dials exactly these executors: missing connections are opened, excess connections closed.
pub(crate) fn dial_executors(
    executors: &ExecutorRegistry,
    configs: &BTreeMap<Arc<str>, ExecutorConfig>,
    secrets: &LogRedactor,
) {
    for name in executors.dialled_names() {
        if !configs.contains_key(&name) {
            executors.hang_up(&name);
        }
    }
    for (name, executor) in configs {
        let credential = executor.token.as_ref();
        let spec = DialSpec {
            endpoint: executor_endpoint(executor),
            credential: credential.map(|token| template_credential(token, secrets)),
            protocol: executor.protocol,
            client_name: CLIENT_NAME.into(),
        };
        executors.dial(name, spec);
    }
}

/// Builds the placement of a server behind an executor.
pub(crate) fn to_placement(via: &ViaConfig) -> ExecutorRoute {
    ExecutorRoute {
        executor: Arc::clone(&via.executor),
        fills: via.secret_headers.clone(),
    }
}

fn executor_endpoint(executor: &ExecutorConfig) -> HttpEndpoint {
    let is_bare = executor.url.uri().path() == "/";
    match executor.protocol {
        ExecutorProtocol::Bowline if is_bare => {
            let url = executor.url.resolve(EXECUTOR_PATH);
            url.unwrap_or_else(|_unlikely| executor.url.clone())
        }
        ExecutorProtocol::Bowline | ExecutorProtocol::ExecServer => executor.url.clone(),
    }
}

/// Builds a credential read for every connection and redacted in logs.
fn template_credential(token: &ConfigTemplate, secrets: &LogRedactor) -> CredentialSource {
    let (token, secrets) = (token.clone(), secrets.clone());
    CredentialSource::from_fn(move || {
        let value = token.expand().map_err(io::Error::other)?;
        secrets.add_secret("executor token", &value);
        Ok(value)
    })
}
