//! The task that connects and reconnects the client, after a loss and on demand.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::retry::{JitterSource, Retry};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::websocket::close_codes;
use bowline_runtime::timer::sleep_until_due;
use bowline_runtime::{Service, Shutdown};
use tokio::time::{sleep, timeout};

use super::hub_connection::{HubConnection, HubConnectionEnd};
use super::{
    BrokerClientShared, BrokerClientSnapshot, BrokerClientState, BrokerConnectError, PeerManifest,
};
use crate::frames::BrokerFrame;

/// Timeout for closing a connection.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Keeps a client connected until closed or fenced.
pub(super) struct HubConnector(pub(super) Arc<BrokerClientShared>);

impl Service for HubConnector {
    const NAME: &'static str = "broker client";

    async fn run(self, shutdown: Shutdown) {
        let Self(shared) = self;
        let last = tokio::select! {
            biased;
            () = shutdown.wait_closing() => BrokerConnectError::Closed,
            fenced = connect_loop(&shared) => fenced,
        };
        let before = shared.snapshot.load_full();
        shared.publish_snapshot(BrokerClientState::Closed(last.clone()), None);
        if let BrokerClientState::Connected(connection) = &before.state {
            connection.outgoing.close(close_codes::NORMAL, "");
            let _ = timeout(CLOSE_WAIT, connection.outgoing.wait_closed()).await;
            connection.finish(HubConnectionEnd {
                reason: last.display_chain(),
                fenced: false,
            });
        }
    }
}

/// Reconnects in a loop; returns when reconnecting is not allowed.
async fn connect_loop(shared: &Arc<BrokerClientShared>) -> BrokerConnectError {
    let mut attempts = ConnectAttempts::new(shared);
    loop {
        let (connection, manifest) = match try_round(shared, &mut attempts).await {
            Ok(opened) => opened,
            Err(error @ BrokerConnectError::Fenced(_)) => {
                tracing::error!(hub = %shared.endpoint, "another peer took over the mailbox");
                return error;
            }
            Err(error) => {
                back_off(shared, &mut attempts, error).await;
                continue;
            }
        };
        let began = shared.options.clock.now();
        tracing::info!(hub = %shared.endpoint, mailbox = %connection.mailbox, "hub connected");
        shared.publish_snapshot(
            BrokerClientState::Connected(Arc::clone(&connection)),
            Some(manifest),
        );
        send_offer(shared, &connection);
        let end = watch_manifest(shared, &connection).await;
        if end.fenced {
            tracing::error!(hub = %shared.endpoint, "another peer took over the mailbox");
            return BrokerConnectError::Fenced(end.reason);
        }
        let lasted = began.duration_until(shared.options.clock.now());
        match lasted >= shared.options.reconnect.steady {
            true => attempts.attempt_retry.reset(),
            false => attempts.attempt_retry.count_failure(),
        }
        tracing::warn!(hub = %shared.endpoint, reason = %end.reason, "hub connection lost");
        shared.publish_snapshot(BrokerClientState::Connecting, None);
    }
}

/// Counters of connection attempts.
#[derive(Debug)]
struct ConnectAttempts {
    /// Successful connections.
    generation: u64,
    /// Consecutive failed attempts and short-lived connections.
    attempt_retry: Retry,
    /// Consecutive failed rounds.
    round_retry: Retry,
}

impl ConnectAttempts {
    fn new(shared: &BrokerClientShared) -> Self {
        let reconnect = shared.options.reconnect;
        Self {
            generation: 0,
            attempt_retry: shared.new_retry(reconnect.backoff),
            round_retry: shared.new_retry(reconnect.round_backoff),
        }
    }
}

/// Runs one round of attempts. Returns right after the last attempt: waiting callers get the error
/// at once.
async fn try_round(
    shared: &Arc<BrokerClientShared>,
    attempts: &mut ConnectAttempts,
) -> Result<(Arc<HubConnection>, Arc<PeerManifest>), BrokerConnectError> {
    let mut attempt = 0;
    loop {
        if attempts.attempt_retry.failures() > 0 {
            sleep(attempts.attempt_retry.wait(shared.options.clock.now())).await;
        }
        attempt += 1;
        let generation = attempts.generation + 1;
        let error = match shared.open_connection(generation).await {
            Ok(opened) => {
                attempts.generation = generation;
                attempts.round_retry.reset();
                return Ok(opened);
            }
            Err(error) => error,
        };
        tracing::debug!(
            hub = %shared.endpoint,
            attempt,
            reason = %error.display_chain(),
            "attempt failed"
        );
        attempts.attempt_retry.count_failure();
        let is_last = attempt >= shared.options.reconnect.attempts_max || error.is_permanent();
        if is_last || matches!(error, BrokerConnectError::Fenced(_)) {
            return Err(error);
        }
    }
}

/// Publishes the failure, and waits for the backoff or for a caller.
async fn back_off(
    shared: &Arc<BrokerClientShared>,
    attempts: &mut ConnectAttempts,
    error: BrokerConnectError,
) {
    tracing::warn!(
        hub = %shared.endpoint,
        reason = %error.display_chain(),
        "hub cannot be reached"
    );
    shared.publish_snapshot(BrokerClientState::BackingOff(error), None);
    let wait = attempts.round_retry.next_wait(shared.options.clock.now());
    tokio::select! {
        () = sleep(wait) => {}
        () = shared.connect_wanted.notified() => {}
    }
    // The backoff between rounds replaces the backoff between attempts.
    attempts.attempt_retry.reset();
    shared.publish_snapshot(BrokerClientState::Connecting, None);
}

/// Sends the current offer.
fn send_offer(shared: &BrokerClientShared, connection: &Arc<HubConnection>) {
    let (revision, servers) = lock(&shared.offer).clone();
    if let Some(servers) = servers {
        shared.send_best_effort(connection, &BrokerFrame::Offer { revision, servers });
    }
}

/// Fetches the manifest whenever the hub announces a change, until the connection ends.
async fn watch_manifest(
    shared: &Arc<BrokerClientShared>,
    connection: &Arc<HubConnection>,
) -> HubConnectionEnd {
    let mut revisions = connection.manifest_revision.subscribe();
    // A change announced during the first fetch may be newer than the fetched manifest.
    revisions.mark_changed();
    let mut retry = shared.new_retry(shared.options.reconnect.backoff);
    let mut retry_at: Option<MonotonicTime> = None;
    let clock = &*shared.options.clock;
    loop {
        tokio::select! {
            biased;
            end = connection.wait_end() => return end,
            // The sender lives in `connection`, so the channel cannot close.
            _ = revisions.changed() => {}
            () = sleep_until_due(clock, retry_at) => {}
        }
        retry_at = None;
        let current = shared.snapshot.load().manifest.revision;
        let newest = *revisions.borrow_and_update();
        if !shared.options.wants_manifest || newest == 0 || newest == current {
            continue;
        }
        let until = clock.now().plus(shared.options.connect_timeout);
        match shared
            .fetch_manifest(connection, shared.live_deadline(until))
            .await
        {
            Ok(manifest) => {
                retry.reset();
                shared.publish_snapshot(
                    BrokerClientState::Connected(Arc::clone(connection)),
                    Some(manifest),
                );
            }
            // Keep the known manifest: a failed fetch removes nothing.
            Err(error) => {
                tracing::warn!(
                    hub = %shared.endpoint,
                    reason = %error.display_chain(),
                    "manifest kept"
                );
                let now = clock.now();
                retry_at = Some(now.plus(retry.next_wait(now)));
            }
        }
    }
}

impl BrokerClientShared {
    /// Replaces the snapshot and notifies subscribers.
    fn publish_snapshot(&self, state: BrokerClientState, manifest: Option<Arc<PeerManifest>>) {
        let before = self.snapshot.load();
        let rounds = match &state {
            BrokerClientState::BackingOff(_) => before.failed_rounds + 1,
            BrokerClientState::Connected(_)
            | BrokerClientState::Connecting
            | BrokerClientState::Closed(_) => before.failed_rounds,
        };
        let index = match &manifest {
            None => Arc::clone(&before.tool_index),
            Some(manifest) => {
                let names = manifest.items.iter().enumerate();
                Arc::new(
                    names
                        .map(|(nth, item)| (Arc::clone(&item.name), nth))
                        .collect(),
                )
            }
        };
        let manifest = manifest.unwrap_or_else(|| Arc::clone(&before.manifest));
        self.snapshot.store(Arc::new(BrokerClientSnapshot {
            state,
            failed_rounds: rounds,
            manifest,
            tool_index: index,
        }));
        self.changes.send_modify(|tick| *tick += 1);
    }

    fn new_retry(&self, backoff: Backoff) -> Retry {
        Retry::new(backoff, JitterSource::from_owner(&self.instance))
    }
}
