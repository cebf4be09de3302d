//! Keeps a connection to an executor that listens.

use std::sync::Arc;

use bowline_core::backoff::Restarts;
use bowline_core::error::whole;
use bowline_link::executor::{
    ExecServer, FENCED, GreetError, OpenError, exec_server_limits, greet,
};
use bowline_link::websocket::{self, DialError, Ended};
use thiserror::Error;
use tokio::sync::watch;

use super::entry::{Entry, Here};
use super::seat::Seat;
use super::{DialSpec, Protocol, Shared, Via, serve};
use crate::credential::Credential;

/// Why an attempt to dial came to nothing.
#[derive(Debug, Error)]
enum Failed {
    #[error("the credential cannot be read")]
    Credential(#[source] std::io::Error),
    #[error("it cannot be dialled")]
    Dial(#[from] DialError),
    #[error("it does not speak our protocol")]
    Greet(#[from] GreetError),
    #[error("it does not speak the protocol of exec-servers")]
    ExecServer(#[from] OpenError),
}

/// Dials until the order is withdrawn or the gateway goes down.
pub(super) async fn keep(
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    mut orders: watch::Receiver<Option<DialSpec>>,
) {
    let mut restarts = Restarts::new(shared.options.backoff, shared.options.steady);
    loop {
        let Some(spec) = orders.borrow_and_update().clone() else {
            return;
        };
        let began = shared.clock.now();
        let ended = tokio::select! {
            biased;
            () = changed(&mut orders, &spec) => continue,
            () = shared.closed() => return,
            ended = connect(&shared, &entry, &spec) => ended,
        };
        match ended {
            // Another gateway has it: it is dialled again when somebody says so.
            Ok(Ended::Closed { code: FENCED, .. }) => {
                if orders.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Ok(_) => {}
            Err(failed) => {
                let reason = whole(&failed);
                tracing::debug!(executor = %entry.name(), reason, "not dialled");
                entry.failed(reason.into());
            }
        }
        let now = shared.clock.now();
        let wait = match entry.is_hoped_for(now) {
            true => shared.options.recovery_every,
            false => restarts.wait(began.until(now), jitter()),
        };
        tokio::select! {
            biased;
            () = shared.closed() => return,
            changed = orders.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Waits until it is to be dialled elsewhere, or not at all. A new credential is for next time.
async fn changed(orders: &mut watch::Receiver<Option<DialSpec>>, spec: &DialSpec) {
    let is_other = |order: &Option<DialSpec>| match order {
        Some(other) => other.endpoint != spec.endpoint || other.protocol != spec.protocol,
        None => true,
    };
    // Whoever orders is gone when nobody does any more.
    let _ = orders.wait_for(is_other).await;
}

/// Dials once, and serves until the end.
async fn connect(
    shared: &Arc<Shared>,
    entry: &Arc<Entry>,
    spec: &DialSpec,
) -> Result<Ended, Failed> {
    let token = spec.credential.as_ref().map(Credential::read).transpose();
    let token = token.map_err(Failed::Credential)?;
    let options = &shared.options;
    let deadline = shared.clock.now().plus(options.connect_timeout);
    let deadline = shared.clock.instant(deadline);
    let token = token.as_deref().map(str::trim);
    let socket = match spec.protocol {
        Protocol::Bowline => options.socket,
        Protocol::ExecServer => exec_server_limits(),
    };
    let dialling = websocket::dial(&spec.endpoint, token, deadline, socket, &shared.tasks);
    let (outgoing, mut incoming) = dialling.await?;
    let from = spec.endpoint.to_string();
    let never = Box::pin(std::future::pending());
    match spec.protocol {
        Protocol::Bowline => {
            let hello = match greet(&mut incoming).await {
                Ok(hello) => hello,
                Err(error) => {
                    error.tell(&outgoing);
                    return Err(error.into());
                }
            };
            let seat = Seat::take(shared, entry, Via::Dialled, &from);
            Ok(serve(shared, seat, &hello, (outgoing, incoming), never)
                .await
                .0)
        }
        Protocol::ExecServer => {
            let io = (outgoing, incoming);
            let opened = ExecServer::open(io, &spec.client_name, None, &shared.tasks).await?;
            let seat = Seat::take(shared, entry, Via::Dialled, &from);
            let here = Here {
                carrier: Arc::new(opened),
                tunnel: None,
            };
            Ok(seat.serve(here, never).await.0)
        }
    }
}

fn jitter() -> u64 {
    let mut random = [0; 8];
    // Without a random number the wait is the whole one.
    let _unlikely = getrandom::fill(&mut random);
    u64::from_be_bytes(random)
}
