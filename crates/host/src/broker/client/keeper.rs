//! The one task that makes connections: when one is lost, and when somebody needs one.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_wire::broker::Frame;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connection::{Connection, End};
use super::open::DONE;
use super::{ConnectError, Manifest, Shared, Snapshot, State};

/// How long the close of a connection may take.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Keeps a client connected until it is stopped or fenced.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut stop = shared.stop.subscribe();
    let last = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => ConnectError::Closed,
        fenced = run(&shared) => fenced,
    };
    let before = shared.snapshot.load_full();
    shared.publish(State::Over(last.clone()), None);
    if let State::Up(connection) = &before.state {
        connection.outgoing.close(DONE, "");
        let _ = timeout(CLOSE_WAIT, connection.outgoing.over()).await;
        connection.end(End {
            reason: last.whole(),
            fenced: false,
        });
    }
}

/// Connects again and again; returns when it must not.
async fn run(shared: &Arc<Shared>) -> ConnectError {
    let mut pace = Pace::default();
    loop {
        let (connection, manifest) = match round(shared, &mut pace).await {
            Ok(opened) => opened,
            Err(error @ ConnectError::Fenced(_)) => {
                tracing::error!(hub = %shared.endpoint, "another peer took our place at the hub");
                return error;
            }
            Err(error) => {
                rest(shared, &mut pace, error).await;
                continue;
            }
        };
        let began = shared.options.clock.now();
        tracing::info!(hub = %shared.endpoint, mailbox = %connection.mailbox, "connected");
        shared.publish(State::Up(Arc::clone(&connection)), Some(manifest));
        offer(shared, &connection);
        let end = attend(shared, &connection).await;
        if end.fenced {
            tracing::error!(hub = %shared.endpoint, "another peer took our place at the hub");
            return ConnectError::Fenced(end.reason);
        }
        let lasted = began.until(shared.options.clock.now());
        pace.lost(lasted >= shared.options.reconnect.steady);
        tracing::warn!(hub = %shared.endpoint, reason = %end.reason, "lost the connection");
        shared.publish(State::Trying, None);
    }
}

/// How attempts went.
#[derive(Debug, Default)]
struct Pace {
    /// Connections made.
    generation: u64,
    /// Attempts that failed, and connections that did not last, in a row.
    failures: u32,
    /// Rounds that failed in a row.
    rests: u32,
}

impl Pace {
    const fn lost(&mut self, was_steady: bool) {
        self.failures = match was_steady {
            true => 0,
            false => self.failures.saturating_add(1),
        };
    }
}

/// Makes some attempts. Returns at once after the last, so that nobody waits for nothing.
async fn round(
    shared: &Arc<Shared>,
    pace: &mut Pace,
) -> Result<(Arc<Connection>, Arc<Manifest>), ConnectError> {
    let reconnect = shared.options.reconnect;
    let mut attempt = 0;
    loop {
        if pace.failures > 0 {
            let jitter = shared.jitter(pace.failures);
            sleep(reconnect.backoff.wait(pace.failures, jitter)).await;
        }
        attempt += 1;
        let generation = pace.generation + 1;
        let error = match shared.open(generation).await {
            Ok(opened) => {
                pace.generation = generation;
                pace.rests = 0;
                return Ok(opened);
            }
            Err(error) => error,
        };
        tracing::debug!(hub = %shared.endpoint, attempt, reason = %error.whole(), "no connection");
        pace.failures = pace.failures.saturating_add(1);
        let is_last = attempt >= reconnect.attempts_max || error.is_definite();
        if is_last || matches!(error, ConnectError::Fenced(_)) {
            return Err(error);
        }
    }
}

/// Tells those who wait, and waits for a while or until somebody asks.
async fn rest(shared: &Arc<Shared>, pace: &mut Pace, error: ConnectError) {
    pace.rests = pace.rests.saturating_add(1);
    tracing::warn!(hub = %shared.endpoint, reason = %error.whole(), "the hub cannot be reached");
    shared.publish(State::Resting(error), None);
    let wait = shared.options.reconnect.rest;
    let wait = wait.wait(pace.rests, shared.jitter(pace.rests));
    tokio::select! {
        () = sleep(wait) => {}
        () = shared.need.notified() => {}
    }
    // The rest was the wait.
    pace.failures = 0;
    shared.publish(State::Trying, None);
}

/// Sends what we offer.
fn offer(shared: &Shared, connection: &Arc<Connection>) {
    let (revision, servers) = lock(&shared.offer).clone();
    if let Some(servers) = servers {
        shared.say(connection, &Frame::Offer { revision, servers });
    }
}

/// Asks again what there is whenever the hub says that it changed, until the connection ends.
async fn attend(shared: &Arc<Shared>, connection: &Arc<Connection>) -> End {
    let mut told = connection.told.subscribe();
    // What was told while we asked for the first time may be newer than what we got.
    told.mark_changed();
    let mut failures = 0;
    let mut again: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            end = connection.ended() => return end,
            // The sender lives in the connection that is held here.
            _ = told.changed() => {}
            () = later(again) => {}
        }
        again = None;
        let known = shared.snapshot.load().manifest.revision;
        let newest = *told.borrow_and_update();
        if !shared.options.wants_manifest || newest == 0 || newest == known {
            continue;
        }
        let until = shared
            .options
            .clock
            .now()
            .plus(shared.options.connect_timeout);
        match shared.fetch(connection, shared.deadline(until)).await {
            Ok(manifest) => {
                failures = 0;
                shared.publish(State::Up(Arc::clone(connection)), Some(manifest));
            }
            // What is known stays: a hub that cannot say has not taken anything away.
            Err(error) => {
                failures += 1;
                tracing::warn!(hub = %shared.endpoint, reason = %error.whole(), "kept its list");
                let backoff = shared.options.reconnect.backoff;
                let wait = backoff.wait(failures, shared.jitter(failures));
                let clock = &shared.options.clock;
                again = Some(clock.instant(clock.now().plus(wait)));
            }
        }
    }
}

async fn later(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Shared {
    /// Swaps the snapshot whole, and tells.
    fn publish(&self, state: State, manifest: Option<Arc<Manifest>>) {
        let before = self.snapshot.load();
        let rounds = match &state {
            State::Resting(_) => before.rounds + 1,
            State::Up(_) | State::Trying | State::Over(_) => before.rounds,
        };
        let index = match &manifest {
            None => Arc::clone(&before.index),
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
        self.snapshot.store(Arc::new(Snapshot {
            state,
            rounds,
            manifest,
            index,
        }));
        self.ticks.send_modify(|tick| *tick += 1);
    }

    /// Well mixed, and different for each client.
    fn jitter(&self, failures: u32) -> u64 {
        let mut mixer = DefaultHasher::new();
        (&self.instance, failures, self.options.clock.now()).hash(&mut mixer);
        mixer.finish()
    }
}
