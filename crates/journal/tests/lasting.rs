//! What must hold over years and over clocks that jump: files of older versions open, and leases
//! do not look at the wall clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_core::time::Now;
use bowline_journal::{
    At, Draft, Expect, Filter, Journal, Known, Lane, Memory, Order, Published, Sqlite, Standing,
};
use bytes::Bytes;

const LANE: &str = "outbox/ann/mail";
const HOUR: Duration = Duration::from_secs(3_600);

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

fn at(now: u64, unix_ms: u64) -> At {
    At {
        now: Now(now),
        unix_ms,
    }
}

fn draft(name: &str, ttl: Option<Duration>) -> Draft {
    Draft {
        lane: Lane::new(LANE).unwrap(),
        dedupe: name.into(),
        digest: [7; 32],
        body: Bytes::from(format!("body of {name}")),
        ttl,
        hold: None,
    }
}

/// What every file among the fixtures holds. It was written by the version it is named after.
async fn write(journal: &dyn Journal) {
    let lane = Lane::new(LANE).unwrap();
    for name in ["done", "dead", "waits"] {
        let stored = journal
            .publish(draft(name, Some(HOUR)), at(1_000, 1_000))
            .await;
        assert!(matches!(stored, Ok(Published::Stored { .. })), "{stored:?}");
    }
    let held = journal.lease(&lane, Order::Any, 2, HOUR, at(2_000, 2_000));
    let held = held.await.unwrap();
    let result = Some(Bytes::from_static(b"sent"));
    journal
        .ack(held[0].receipt, result, at(3_000, 3_000))
        .await
        .unwrap();
    journal
        .bury(held[1].receipt, "refused".into(), at(4, 4_000))
        .await
        .unwrap();
    let value = Some(Bytes::from_static(b"one"));
    journal.put("pins/a", value, Expect::Absent).await.unwrap();
    journal.close().await;
}

async fn read(journal: &dyn Journal) {
    let lane = Lane::new(LANE).unwrap();
    let filter = Filter {
        limit: 10,
        ..Filter::default()
    };
    let entries = journal.inspect(filter, at(5, 5_000)).await.unwrap();
    let shown: Vec<_> = entries
        .iter()
        .map(|one| (&*one.dedupe, one.standing.clone(), one.expires_unix_ms))
        .collect();
    let expires = Some(1_000 + 3_600_000);
    assert_eq!(
        shown,
        [
            ("dead", Standing::Dead("refused".into()), expires),
            ("waits", Standing::Waiting, expires)
        ]
    );
    assert_eq!(entries[1].body, "body of waits");
    let done = journal.result(&lane, "done").await.unwrap().unwrap();
    assert_eq!(
        (done.result.as_deref(), done.unix_ms),
        (Some(&b"sent"[..]), 3_000)
    );
    let again = journal.publish(draft("done", None), at(6, 6_000)).await;
    assert_eq!(again, Ok(Published::Known(Known::Done(done))));
    assert_eq!(journal.get("pins/a").await.unwrap().unwrap().bytes, "one");
    journal.close().await;
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files.collect()
}

#[test]
fn files_of_every_version_open_and_say_what_they_said() {
    let files = fixtures();
    assert!(!files.is_empty());
    for file in files {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        fs::copy(&file, &path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        wait(read(&Sqlite::open(&path).unwrap()));
    }
}

#[test]
fn what_this_version_writes_is_what_the_fixtures_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    wait(write(&Sqlite::open(&path).unwrap()));
    // The file that a release leaves among the fixtures is this one.
    wait(read(&Sqlite::open(&path).unwrap()));
}

#[test]
fn a_lease_does_not_look_at_the_wall_clock() {
    let dir = tempfile::tempdir().unwrap();
    let engines: [Box<dyn Journal>; 2] = [
        Box::new(Memory::default()),
        Box::new(Sqlite::open(&dir.path().join("state.db")).unwrap()),
    ];
    for journal in engines {
        wait(async {
            let lane = Lane::new(LANE).unwrap();
            let minute = Duration::from_secs(60);
            let (noon, hour) = (12 * 3_600_000, 3_600_000);
            let lease = |at| journal.lease(&lane, Order::Any, 1, minute, at);
            journal
                .publish(draft("a", None), at(0, noon))
                .await
                .unwrap();
            assert_eq!(lease(at(0, noon)).await.unwrap().len(), 1);
            // The clock on the wall jumps an hour ahead and an hour back: a second has passed.
            assert_eq!(lease(at(1_000, noon + hour)).await.unwrap(), []);
            assert_eq!(lease(at(1_000, noon - hour)).await.unwrap(), []);
            // The minute is over, whatever the wall says.
            let again = lease(at(60_000, noon - hour)).await.unwrap();
            let receipt = again[0].receipt;
            // A message that was given back is due after its delay, whatever the wall says.
            journal
                .nak(receipt, minute, at(60_000, noon + hour))
                .await
                .unwrap();
            assert_eq!(lease(at(61_000, noon + 9 * hour)).await.unwrap(), []);
            assert_eq!(lease(at(120_000, noon - hour)).await.unwrap().len(), 1);
            journal.close().await;
        });
    }
}

#[test]
fn wall_jump_expires_nothing_queued_before() {
    let dir = tempfile::tempdir().unwrap();
    let engines: [Box<dyn Journal>; 2] = [
        Box::new(Memory::default()),
        Box::new(Sqlite::open(&dir.path().join("state.db")).unwrap()),
    ];
    let (noon, hour) = (500_000 * 3_600_000, 3_600_000);
    for journal in engines {
        wait(async {
            let lane = Lane::new(LANE).unwrap();
            let stored = journal.publish(draft("a", Some(HOUR)), at(0, noon)).await;
            stored.unwrap();
            // The wall clock jumps a year ahead; a second has passed.
            let jumped = noon + 365 * 24 * hour;
            let past = journal.expire("", at(1_000, jumped)).await.unwrap();
            assert_eq!(past, []);
            let minute = Duration::from_secs(60);
            let given = journal.lease(&lane, Order::Strict, 1, minute, at(2_000, jumped));
            let given = given.await.unwrap();
            // Whoever is given it is told how much time is left, not how late it is on the wall.
            let (age, left) = (given[0].age, given[0].left.unwrap());
            assert!(age < minute && left > HOUR - minute, "{age:?} {left:?}");
            let receipt = given[0].receipt;
            let back = journal.nak(receipt, Duration::ZERO, at(3_000, jumped));
            back.await.unwrap();
            // When the hour is over it expires, also where the wall clock went back.
            let past = journal.expire("", at(2 * hour, noon)).await.unwrap();
            assert_eq!(past.len(), 1);
        });
    }
}

#[test]
fn wall_jump_over_restart_expires_after_grace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.db");
    let (noon, hour) = (500_000 * 3_600_000, 3_600_000);
    let jumped = noon + 72 * hour;
    let day = Duration::from_secs(24 * 3_600);
    wait(async {
        let journal = Sqlite::open(&path).unwrap();
        for (name, ttl) in [("hour", HOUR), ("day", day)] {
            let stored = journal.publish(draft(name, Some(ttl)), at(7, noon));
            stored.await.unwrap();
        }
        journal.close().await;
    });
    wait(async {
        let journal = Sqlite::open(&path).unwrap();
        let past = journal.expire("", at(0, jumped)).await.unwrap();
        assert_eq!(past, [], "what was queued a moment ago can be tried");
        // Then a stop counts, but not all of it: three days may be a clock that is wrong.
        let grace = 300_000;
        let past = journal.expire("", at(grace, jumped + grace)).await.unwrap();
        let names: Vec<_> = past.iter().map(|entry| &*entry.dedupe).collect();
        assert_eq!(names, ["hour"]);
        let later = 12 * hour;
        let past = journal.expire("", at(later, jumped + later)).await.unwrap();
        let names: Vec<_> = past.iter().map(|entry| &*entry.dedupe).collect();
        assert_eq!(names, ["day"], "half a day of the stop counted");
        journal.close().await;
    });
}
