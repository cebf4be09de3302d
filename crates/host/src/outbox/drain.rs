//! Starts the drain of every lane that may send: one at a time to a server that is not known to be
//! up, and side by side to one that is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_journal::audit::Kind;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use super::letter::parties;
use super::record::Record;
use super::worker::drain_lane;
use super::{LANES, Shared};
use crate::audit::End;
use crate::callpath::CallPath;
use crate::events::{Event, What};

/// How often writes are looked for that are past their time.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How long what is under way may take to end when the gateway goes down.
const END_WAIT: Duration = Duration::from_secs(2);

/// Delivers until the gateway goes down or is gone.
pub(super) async fn run(
    shared: Arc<Shared>,
    path: Weak<CallPath>,
    mut events: broadcast::Receiver<Event>,
    end: watch::Sender<bool>,
) {
    let mut steps = JoinSet::new();
    let mut closing = shared.closing.clone();
    load(&shared).await;
    let mut sweep = shared.clock.now().plus(SWEEP_EVERY);
    loop {
        start(&shared, &path, &mut steps);
        let due = {
            let known = reachable(&path);
            let board = lock(&shared.board);
            let next = board.due(&known);
            let sweep = (!board.is_empty()).then_some(sweep);
            next.into_iter().chain(sweep).min()
        };
        tokio::select! {
            biased;
            gone = closing.wait_for(|closing| *closing) => {
                drop(gone);
                break;
            }
            () = shared.poke.notified() => {}
            Some(_) = steps.join_next(), if !steps.is_empty() => {}
            event = events.recv() => heard(&shared, event),
            () = until(&shared, due), if due.is_some() => {}
        }
        let now = shared.clock.now();
        if sweep <= now {
            sweep = now.plus(SWEEP_EVERY);
            // Each look makes a bounded number of dead letters.
            while expire(&shared, LANES).await > 0 {}
        }
    }
    let all = async { while steps.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(END_WAIT, all).await;
    drop(steps);
    end.send_replace(true);
}

/// Notes what was left when the gateway last went down.
async fn load(shared: &Shared) {
    if let Err(error) = shared.index.load(&*shared.journal).await {
        tracing::warn!(%error, "delivered writes cannot be shown");
    }
    let lanes = shared.journal.lanes(LANES, shared.at()).await;
    let lanes = match lanes {
        Ok(lanes) => lanes,
        Err(error) => {
            tracing::error!(%error, "queued writes cannot be read");
            return;
        }
    };
    let now = shared.clock.now();
    let mut board = lock(&shared.board);
    for lane in lanes.iter().filter(|lane| lane.waiting > 0) {
        let (_, server) = parties(lane.lane.as_str());
        board.note(&lane.lane.as_str().into(), &server.into(), now);
    }
}

/// Says of a server whether it is configured.
fn reachable(path: &Weak<CallPath>) -> impl Fn(&str) -> bool + use<> {
    let servers = path.upgrade().map(|path| path.servers.load_full());
    move |server| servers.as_ref().is_some_and(|all| all.contains_key(server))
}

async fn until(shared: &Shared, due: Option<Now>) {
    if let Some(due) = due {
        tokio::time::sleep_until(shared.clock.instant(due)).await;
    }
}

/// Has every lane send that may.
fn start(shared: &Arc<Shared>, path: &Weak<CallPath>, steps: &mut JoinSet<()>) {
    let known = reachable(path);
    let now = shared.clock.now();
    loop {
        let next = lock(&shared.board).next(now, &known);
        let Some((lane, path)) = next.zip(path.upgrade()) else {
            return;
        };
        let shared = Arc::clone(shared);
        steps.spawn(drain_lane(shared, path, lane));
    }
}

fn heard(shared: &Shared, event: Result<Event, RecvError>) {
    let now = shared.clock.now();
    let mut board = lock(&shared.board);
    match event {
        Ok(Event {
            what:
                What::State {
                    server,
                    state: "ready",
                    ..
                },
            ..
        }) => board.ready(&server, now),
        // Whatever was missed, and whichever servers are behind an executor: one try for each
        // server is cheap.
        Ok(Event {
            what: What::Executor {
                state: "connected", ..
            },
            ..
        })
        | Err(RecvError::Lagged(_)) => {
            let lanes: Vec<_> = board.names().cloned().collect();
            for lane in lanes {
                board.ready(parties(&lane).1, now);
            }
        }
        Ok(_) | Err(RecvError::Closed) => {}
    }
}

/// Makes dead letters of what is past its time, and tells of it.
pub(super) async fn expire(shared: &Shared, lanes: &str) -> usize {
    let past = shared.journal.expire(lanes, shared.at()).await;
    let past = past.unwrap_or_else(|error| {
        tracing::error!(%error, "queued writes cannot be looked through");
        Vec::new()
    });
    for entry in &past {
        if let Some(record) = Record::read(&entry.body) {
            let end = End::Word("expired");
            shared.is_dead(entry, &record, (Kind::Expired, end));
        }
    }
    past.len()
}
