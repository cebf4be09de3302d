//! Dials the executors that a config names.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bowline_host::executor::{CLIENT_NAME, Credential, DialSpec, Executors, Protocol};
use bowline_host::spec::Placement;
use bowline_link::http::endpoint::Endpoint;

use crate::config::{ExecutorConfig, Template, Via};
use crate::telemetry::Secrets;

/// Where executors of ours take gateways in, unless the address says otherwise.
const PATH: &str = "/executor";

/// Keeps connections to these executors, and to no others.
pub(crate) fn dial(
    executors: &Executors,
    wanted: &BTreeMap<Arc<str>, ExecutorConfig>,
    secrets: &Secrets,
) {
    for name in executors.dialled() {
        if !wanted.contains_key(&name) {
            executors.hang_up(&name);
        }
    }
    for (name, one) in wanted {
        let credential = one.token.as_ref();
        let spec = DialSpec {
            endpoint: endpoint(one),
            credential: credential.map(|token| reading(token, secrets)),
            protocol: one.protocol,
            client_name: CLIENT_NAME.into(),
        };
        executors.dial(name, spec);
    }
}

/// Returns how requests for a server leave.
pub(crate) fn placement(via: &Via) -> Placement {
    Placement {
        executor: Arc::clone(&via.executor),
        fills: via.fills.clone(),
    }
}

fn endpoint(one: &ExecutorConfig) -> Endpoint {
    let is_bare = one.url.uri().path() == "/";
    match one.protocol {
        Protocol::Bowline if is_bare => {
            let there = one.url.resolve(PATH);
            there.unwrap_or_else(|_unlikely| one.url.clone())
        }
        Protocol::Bowline | Protocol::ExecServer => one.url.clone(),
    }
}

/// Returns a credential that is read for every connection, and that no log shows.
fn reading(token: &Template, secrets: &Secrets) -> Credential {
    let (token, secrets) = (token.clone(), secrets.clone());
    Credential::reading(move || {
        let value = token.value().map_err(io::Error::other)?;
        secrets.learn("executor token", &value);
        Ok(value)
    })
}
