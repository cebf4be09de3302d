//! Tests of what only a journal on a disk can do.

mod damage;
mod failing;
mod files;
mod replaced;
mod segments;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::time::Now;
use bytes::Bytes;

use super::Sqlite;
use crate::engine::{At, Draft, Journal, JournalError, Lane, Published, Receipt};

fn at(ms: u64) -> At {
    At {
        now: Now(ms),
        unix_ms: 1_000_000 + ms,
    }
}

fn draft(lane: &str, name: &str) -> Draft {
    Draft {
        lane: Lane::new(lane).unwrap(),
        dedupe: name.into(),
        digest: [name.len() as u8; 32],
        body: Bytes::from(format!("what {name} says in {lane}").repeat(8)),
        ttl: Some(Duration::from_secs(3600)),
        hold: None,
    }
}

fn open(path: &Path) -> Sqlite {
    Sqlite::open(path).unwrap()
}

/// Runs something that waits.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

/// Stores a message and holds it.
fn hold(journal: &Sqlite, lane: &str, name: &str) -> Receipt {
    let draft = Draft {
        hold: Some(Duration::from_secs(60)),
        ..draft(lane, name)
    };
    match wait(journal.publish(draft, at(1))) {
        Ok(Published::Stored {
            held: Some(held), ..
        }) => held,
        other => panic!("{other:?}"),
    }
}

fn is_damaged<T>(outcome: &Result<T, JournalError>) -> bool {
    matches!(outcome, Err(JournalError::Damaged { .. }))
}

/// Two lanes with messages of every kind, ends and values, closed in order.
fn fill(path: &Path) {
    let journal = open(path);
    wait(async {
        for name in ["done", "dead", "a", "b", "c", "d"] {
            for lane in ["one", "two"] {
                journal.publish(draft(lane, name), at(1)).await.unwrap();
            }
        }
        for lane in ["one", "two"] {
            let lane = Lane::new(lane).unwrap();
            let hold = Duration::from_secs(9);
            let order = crate::engine::Order::Any;
            let two = journal.lease(&lane, order, 2, hold, at(2)).await.unwrap();
            let result = Some(Bytes::from(vec![7; 300]));
            journal.ack(two[0].receipt, result, at(3)).await.unwrap();
            let reason = Arc::from("it was refused");
            journal.bury(two[1].receipt, reason, at(4)).await.unwrap();
        }
        for key in ["k/1", "k/2", "k/3"] {
            let value = Bytes::from(key.repeat(50));
            let expect = crate::engine::Expect::Any;
            journal.put(key, Some(value), expect).await.unwrap();
        }
        journal.close().await;
    });
}
