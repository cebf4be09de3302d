//! State of a request after a crash: started or not, and with which outcome.

use std::path::Path;
use std::sync::Arc;

use bowline_broker::{ReplyError, ServeLimits};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_journal::engine::COMPLETED_TTL;
use bowline_journal::{
    Journal, LaneName, MemoryJournal, MessageDraft, MessageFilter, SqliteJournal, Timestamps,
};
use bowline_testkit::serve_rig::{
    RecordingReplySink, ReplyStep, ServeRig, call, failure, incoming, output,
};
use bytes::Bytes;

fn serve_rig(journal: Arc<dyn Journal>) -> ServeRig {
    let list = RoleAllowlist::unrestricted();
    ServeRig::with_journal(journal, &list, ServeLimits::default())
}

fn open_journal(dir: &Path) -> Arc<dyn Journal> {
    Arc::new(SqliteJournal::open(&dir.join("journal.db")).unwrap())
}

/// Starts a request and drops the process state during the run.
async fn crash(dir: &Path, id: &str, tool: &str) {
    let journal = open_journal(dir);
    let side = serve_rig(Arc::clone(&journal));
    let post = Arc::new(RecordingReplySink::default());
    let running = side.start(side.request(id, tool), &post);
    side.runs.wait_for(1).await;
    running.abort();
    let _ = running.await;
    assert_eq!(post.steps(), []);
    journal.close().await;
}

#[tokio::test]
async fn interrupted_write_is_unknown_after_crash() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), "1", "hang").await;
    for _ in 0..2 {
        let journal = open_journal(dir.path());
        let side = serve_rig(Arc::clone(&journal));
        let told = failure(
            side.handle_stored(side.request("1", "hang"))
                .await
                .single_reply(),
        );
        assert_eq!(
            (&*told.code, told.class),
            ("outcome_unknown", FailureClass::ConnectionLost)
        );
        assert_eq!(told.execution, ExecutionStatus::Unknown);
        assert_eq!(side.runs.count(), 0, "and that is remembered");
        // An unrelated request runs.
        let id = side.clock.unix_ms().to_string();
        output(
            &side
                .handle_stored(side.request(&id, "write"))
                .await
                .single_reply(),
        );
        journal.close().await;
    }
}

#[tokio::test]
async fn interrupted_write_is_unknown_past_deadline() {
    let dir = tempfile::tempdir().unwrap();
    crash(dir.path(), "1", "hang").await;
    let side = serve_rig(open_journal(dir.path()));
    let late = incoming("ann", None, "1", call("hang", "{}"), side.clock.now());
    let told = failure(side.handle_stored(late).await.single_reply());
    assert_eq!(
        &*told.code, "outcome_unknown",
        "it may have run, so it is not `expired`"
    );
}

#[tokio::test]
async fn interrupted_read_runs_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open_journal(dir.path());
    let first = serve_rig(Arc::clone(&journal));
    let lost = RecordingReplySink::refusing_with(ReplyError::Lost);
    first
        .serving
        .handle_stored(first.request("1", "read"), &lost)
        .await;
    assert_eq!(first.runs.count(), 1);
    journal.close().await;
    drop(first);
    let second = serve_rig(open_journal(dir.path()));
    let post = second.handle_stored(second.request("1", "read")).await;
    assert!(!output(&post.single_reply()).1);
    assert_eq!(second.runs.count(), 1);
}

#[tokio::test]
async fn finished_request_is_replayed_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open_journal(dir.path());
    let first = serve_rig(Arc::clone(&journal));
    let lost = RecordingReplySink::refusing_with(ReplyError::Lost);
    first
        .serving
        .handle_stored(first.request("1", "write"), &lost)
        .await;
    let [ReplyStep::Reply(told), ReplyStep::PutBack] = &lost.steps()[..] else {
        panic!("{:?}", lost.steps())
    };
    let told = output(told).0;
    journal.close().await;
    drop(first);
    let second = serve_rig(open_journal(dir.path()));
    let post = second.handle_stored(second.request("1", "write")).await;
    assert_eq!(output(&post.single_reply()), (told, true));
    assert_eq!(second.runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_running_request_is_unknown() {
    let side = serve_rig(Arc::new(MemoryJournal::default()));
    let post = Arc::new(RecordingReplySink::default());
    let running = side.start(side.request("1", "hang"), &post);
    side.runs.wait_for(1).await;
    running.abort();
    let _ = running.await;
    let again = side.handle_stored(side.request("1", "hang")).await;
    assert_eq!(&*failure(again.single_reply()).code, "outcome_unknown");
    assert_eq!(side.runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn different_request_with_same_id_conflicts() {
    let side = serve_rig(Arc::new(MemoryJournal::default()));
    side.handle_stored(side.request("1", "write")).await;
    let other = incoming(
        "ann",
        None,
        "1",
        call("write", r#"{"n":1}"#),
        side.deadline(),
    );
    let told = failure(side.handle_stored(other).await.single_reply());
    assert_eq!(
        (&*told.code, told.class),
        ("idempotency_conflict", FailureClass::Invalid)
    );
    assert_eq!(
        (told.execution, side.runs.count()),
        (ExecutionStatus::NotStarted, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn failing_journal_prevents_recorded_runs() {
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
    let side = serve_rig(Arc::clone(&journal));
    journal.close().await;
    let told = failure(
        side.handle_stored(side.request("1", "write"))
            .await
            .single_reply(),
    );
    assert_eq!(
        (&*told.code, told.execution),
        ("not_stored", ExecutionStatus::NotStarted)
    );
    assert_eq!(side.runs.count(), 0);
    output(
        &side
            .handle_stored(side.request("2", "read"))
            .await
            .single_reply(),
    );
}

#[tokio::test(start_paused = true)]
async fn old_unfinished_requests_are_forgotten() {
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
    let lane = LaneName::new("ran/w").unwrap();
    let left = |dedupe: &str| MessageDraft {
        lane: lane.clone(),
        dedupe: dedupe.into(),
        digest: [0; 32],
        body: Bytes::new(),
        ttl: None,
        lease: None,
    };
    let side = serve_rig(Arc::clone(&journal));
    let at = || Timestamps {
        now: side.clock.now(),
        unix_ms: side.clock.unix_ms(),
    };
    journal.publish(left("ann/old"), at()).await.unwrap();
    // By elapsed time: the wall clock stands still.
    tokio::time::advance(2 * COMPLETED_TTL).await;
    let now = at();
    journal.publish(left("ann/new"), now).await.unwrap();
    side.handle_stored(side.request("1", "write")).await;
    let filter = MessageFilter {
        limit: 9,
        ..MessageFilter::default()
    };
    let kept = journal.list_messages(filter, now).await.unwrap();
    let kept: Vec<_> = kept.iter().map(|entry| &*entry.dedupe).collect();
    assert_eq!(kept, ["ann/new"]);
}
