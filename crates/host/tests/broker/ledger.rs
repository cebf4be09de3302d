//! What is known of a request after a crash: whether it was begun, and what came of it.

use std::path::Path;
use std::sync::Arc;

use bowline_core::error::{Class, Execution};
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::{ReplyError, ServeLimits};
use bowline_journal::engine::DONE_KEPT;
use bowline_journal::{At, Draft, Filter, Journal, Lane, Memory, Sqlite};
use bytes::Bytes;

use super::post::{Post, Side, Step, call, failure, incoming, output};

fn side(journal: Arc<dyn Journal>) -> Side {
    let list = RoleAllowlist::unrestricted();
    Side::with(journal, &list, ServeLimits::default())
}

fn opened(dir: &Path) -> Arc<dyn Journal> {
    Arc::new(Sqlite::open(&dir.join("journal.db")).unwrap())
}

/// Begins a request and lets its process die under it.
async fn crash(dir: &Path, id: &str, tool: &str) {
    let journal = opened(dir);
    let side = side(Arc::clone(&journal));
    let post = Arc::new(Post::default());
    let running = side.start(side.request(id, tool), &post);
    while side.runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    running.abort();
    let _ = running.await;
    assert_eq!(post.steps(), []);
    journal.close().await;
}

#[tokio::test]
async fn a_write_that_was_begun_before_a_crash_is_told_as_unknown_and_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), "1", "hang").await;
    for _ in 0..2 {
        let journal = opened(dir.path());
        let side = side(Arc::clone(&journal));
        let told = failure(side.carried(side.request("1", "hang")).await.answer());
        assert_eq!(
            (&*told.code, told.class),
            ("outcome_unknown", Class::ConnectionLost)
        );
        assert_eq!(told.execution, Execution::Unknown);
        assert_eq!(side.runs.count(), 0, "and that is remembered");
        // What has nothing to do with it runs.
        let id = side.clock.unix_ms().to_string();
        output(&side.carried(side.request(&id, "write")).await.answer());
        journal.close().await;
    }
}

#[tokio::test]
async fn a_write_that_was_begun_before_a_crash_is_unknown_also_when_it_is_late() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), "1", "hang").await;
    let side = side(opened(dir.path()));
    let late = incoming(("ann", None), "1", call("hang", "{}"), side.clock.now());
    let told = failure(side.carried(late).await.answer());
    assert_eq!(
        &*told.code, "outcome_unknown",
        "it may have run, so it is not `expired`"
    );
}

#[tokio::test]
async fn a_read_that_was_under_way_at_a_crash_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    let first = side(Arc::clone(&journal));
    let lost = Post::refusing(ReplyError::Lost);
    first
        .serving
        .stored(first.request("1", "read"), &lost)
        .await;
    assert_eq!(first.runs.count(), 1);
    journal.close().await;
    drop(first);
    let second = side(opened(dir.path()));
    let post = second.carried(second.request("1", "read")).await;
    assert!(!output(&post.answer()).1);
    assert_eq!(second.runs.count(), 1);
}

#[tokio::test]
async fn what_ran_before_a_restart_is_answered_from_the_journal_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = opened(dir.path());
    let first = side(Arc::clone(&journal));
    let lost = Post::refusing(ReplyError::Lost);
    first
        .serving
        .stored(first.request("1", "write"), &lost)
        .await;
    let [Step::Reply(told), Step::PutBack] = &lost.steps()[..] else {
        panic!("{:?}", lost.steps())
    };
    let told = output(told).0;
    journal.close().await;
    drop(first);
    let second = side(opened(dir.path()));
    let post = second.carried(second.request("1", "write")).await;
    assert_eq!(output(&post.answer()), (told, true));
    assert_eq!(second.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_while_it_runs_is_told_as_unknown() {
    let side = side(Arc::new(Memory::default()));
    let post = Arc::new(Post::default());
    let running = side.start(side.request("1", "hang"), &post);
    while side.runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    running.abort();
    let _ = running.await;
    let again = side.carried(side.request("1", "hang")).await;
    assert_eq!(&*failure(again.answer()).code, "outcome_unknown");
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_request_of_the_same_id_is_a_conflict() {
    let side = side(Arc::new(Memory::default()));
    side.carried(side.request("1", "write")).await;
    let other = incoming(
        ("ann", None),
        "1",
        call("write", r#"{"n":1}"#),
        side.until(),
    );
    let told = failure(side.carried(other).await.answer());
    assert_eq!(
        (&*told.code, told.class),
        ("idempotency_conflict", Class::Invalid)
    );
    assert_eq!(
        (told.execution, side.runs.count()),
        (Execution::NotStarted, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_takes_nothing_runs_nothing_that_must_be_written_down() {
    let journal: Arc<dyn Journal> = Arc::new(Memory::default());
    let side = side(Arc::clone(&journal));
    journal.close().await;
    let told = failure(side.carried(side.request("1", "write")).await.answer());
    assert_eq!(
        (&*told.code, told.execution),
        ("not_stored", Execution::NotStarted)
    );
    assert_eq!(side.runs.count(), 0);
    output(&side.carried(side.request("2", "read")).await.answer());
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_so_long_ago_that_nobody_asks_again_is_forgotten() {
    let journal: Arc<dyn Journal> = Arc::new(Memory::default());
    let lane = Lane::new("ran/w").unwrap();
    let left = |dedupe: &str| Draft {
        lane: lane.clone(),
        dedupe: dedupe.into(),
        digest: [0; 32],
        body: Bytes::new(),
        ttl: None,
        hold: None,
    };
    let side = side(Arc::clone(&journal));
    let at = || At {
        now: side.clock.now(),
        unix_ms: side.clock.unix_ms(),
    };
    journal.publish(left("ann/old"), at()).await.unwrap();
    // By elapsed time: the wall clock stands still.
    tokio::time::advance(2 * DONE_KEPT).await;
    let now = at();
    journal.publish(left("ann/new"), now).await.unwrap();
    side.carried(side.request("1", "write")).await;
    let filter = Filter {
        limit: 9,
        ..Filter::default()
    };
    let kept = journal.inspect(filter, now).await.unwrap();
    let kept: Vec<_> = kept.iter().map(|entry| &*entry.dedupe).collect();
    assert_eq!(kept, ["ann/new"]);
}
