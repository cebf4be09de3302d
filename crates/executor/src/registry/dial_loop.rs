//! Dial loop of a listening executor.

use std::sync::Arc;

use bowline_core::error::display_chain;
use bowline_core::retry::{JitterSource, Retry};
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{self, DialError, DisconnectReason};
use bowline_runtime::{CredentialSource, Service, Shutdown};

use crate::connection::{
    ExecServerConnection, ExecServerOpenError, ExecutorHandshakeError, exec_server_limits,
    receive_hello,
};
use thiserror::Error;
use tokio::sync::watch;

use super::executor_entry::{CurrentConnection, ExecutorEntry};
use super::name_claim::NameClaim;
use super::{DialDirection, DialSpec, ExecutorProtocol, RegistryShared, serve_session};

/// Why a dial attempt failed.
#[derive(Debug, Error)]
enum DialAttemptError {
    #[error("the credential cannot be read")]
    Credential(#[source] std::io::Error),
    #[error("it cannot be dialled")]
    Dial(#[from] DialError),
    #[error("it does not speak our protocol")]
    Greet(#[from] ExecutorHandshakeError),
    #[error("it does not speak the protocol of exec-servers")]
    ExecServer(#[from] ExecServerOpenError),
}

/// Dials one listening executor until `specs` becomes `None` or the gateway shuts down.
pub(super) struct ExecutorDialer {
    pub(super) shared: Arc<RegistryShared>,
    pub(super) entry: Arc<ExecutorEntry>,
    pub(super) specs: watch::Receiver<Option<DialSpec>>,
}

impl Service for ExecutorDialer {
    const NAME: &'static str = "executor dial";

    async fn run(self, shutdown: Shutdown) {
        let Self {
            shared,
            entry,
            mut specs,
        } = self;
        tokio::select! {
            biased;
            () = shutdown.wait_closing() => {}
            () = dial_until_hang_up(&shared, &entry, &mut specs) => {}
        }
    }
}

async fn dial_until_hang_up(
    shared: &Arc<RegistryShared>,
    entry: &Arc<ExecutorEntry>,
    specs: &mut watch::Receiver<Option<DialSpec>>,
) {
    let retry = Retry::new(shared.options.backoff, JitterSource::random());
    let mut retry = retry.with_steady_run(shared.options.steady);
    loop {
        let Some(spec) = specs.borrow_and_update().clone() else {
            return;
        };
        let began = shared.clock.now();
        let result = tokio::select! {
            biased;
            () = wait_changed(specs, &spec) => continue,
            ended = dial_once(shared, entry, &spec) => ended,
        };
        match result {
            // Another gateway took over the executor: dial again only after a new spec.
            Ok(DisconnectReason::Closed {
                code: close_codes::FENCED,
                ..
            }) => {
                if specs.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Ok(_) => {}
            Err(error) => {
                let reason = display_chain(&error);
                tracing::debug!(executor = %entry.name(), reason, "executor dial failed");
                entry.record_dial_failure(reason.into());
            }
        }
        let now = shared.clock.now();
        let wait = match entry.is_awaited(now) {
            true => shared.options.recovery_interval,
            false => retry.next_wait_after_run(began.duration_until(now), now),
        };
        tokio::select! {
            biased;
            changed = specs.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Waits for another endpoint or protocol, or for the end of dialling. A new credential applies on
/// the next dial.
async fn wait_changed(specs: &mut watch::Receiver<Option<DialSpec>>, spec: &DialSpec) {
    let is_other = |order: &Option<DialSpec>| match order {
        Some(other) => other.endpoint != spec.endpoint || other.protocol != spec.protocol,
        None => true,
    };
    // A closed channel means that the entry is gone.
    let _ = specs.wait_for(is_other).await;
}

/// Dials once, and serves until the end.
async fn dial_once(
    shared: &Arc<RegistryShared>,
    entry: &Arc<ExecutorEntry>,
    spec: &DialSpec,
) -> Result<DisconnectReason, DialAttemptError> {
    let token = spec
        .credential
        .as_ref()
        .map(CredentialSource::read)
        .transpose();
    let token = token.map_err(DialAttemptError::Credential)?;
    let options = &shared.options;
    let deadline = shared.clock.now().plus(options.connect_timeout);
    let deadline = shared.clock.instant(deadline);
    let token = token.as_deref().map(str::trim);
    let limits = match spec.protocol {
        ExecutorProtocol::Bowline => options.socket,
        ExecutorProtocol::ExecServer => exec_server_limits(),
    };
    let dialling = websocket::dial(&spec.endpoint, token, deadline, limits, &shared.tasks);
    let mut socket = dialling.await?;
    let from = spec.endpoint.to_string();
    let never = Box::pin(std::future::pending());
    match spec.protocol {
        ExecutorProtocol::Bowline => {
            let hello = match receive_hello(&mut socket.receiver).await {
                Ok(hello) => hello,
                Err(error) => {
                    error.close_connection(&socket.sender);
                    return Err(error.into());
                }
            };
            let claim = NameClaim::claim(shared, entry, DialDirection::Dialled, &from);
            let session = serve_session(shared, claim, &hello, socket, never);
            Ok(session.await.0)
        }
        ExecutorProtocol::ExecServer => {
            let opened =
                ExecServerConnection::open(socket, &spec.client_name, None, &shared.tasks).await?;
            let claim = NameClaim::claim(shared, entry, DialDirection::Dialled, &from);
            let current = CurrentConnection {
                connection: Arc::new(opened),
                tunnel: None,
            };
            Ok(claim.serve_connection(current, never).await.0)
        }
    }
}
