//! Requests run concurrently up to the limits, and a failing request affects no other.

use std::sync::Arc;
use std::time::Duration;

use bowline_broker::{ExecutorBackend, ReplyError, RequestLedger, ServeEngine, ServeLimits};
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_journal::MemoryJournal;
use bowline_runtime::SystemClock;
use bowline_testkit::serve_rig::{
    RecordingReplySink, ReplyStep, ServeRig, call, failure, incoming, output, run_number,
};
use bowline_testkit::{run_until_idle, spawn_task};
use bowline_tools::ToolOutput;
use bowline_tools::Toolbox;
use serde_json::json;
use tokio::sync::{Barrier, Semaphore};

fn limited(limits: ServeLimits) -> ServeRig {
    ServeRig::with_journal(
        Arc::new(MemoryJournal::default()),
        &RoleAllowlist::unrestricted(),
        limits,
    )
}

async fn ran(side: &ServeRig, count: usize) {
    side.runs.wait_for(count).await;
    // A run above the limit would start now.
    run_until_idle().await;
    assert_eq!(side.runs.count(), count);
}

#[tokio::test(start_paused = true)]
async fn four_calls_run_concurrently() {
    let barrier = Arc::new(Barrier::new(4));
    let meet = Toolbox::default().with("meet", "", &json!({}), move |_, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(ToolOutput::from_text("met"))
        }
    });
    let clock = Arc::new(SystemClock::start());
    let list = RoleAllowlist::unrestricted();
    let backend = ExecutorBackend::new(Arc::new(meet), &list, clock.clone());
    let ledger = RequestLedger::new(Arc::new(MemoryJournal::default()), "w").unwrap();
    let limits = ServeLimits::default();
    let serving = Arc::new(ServeEngine::new(
        Arc::new(backend),
        ledger,
        limits,
        clock.clone(),
    ));
    let deadline = bowline_runtime::Clock::now(&*clock).plus(Duration::from_secs(9));
    let posts: Vec<_> = (0..4)
        .map(|_| Arc::new(RecordingReplySink::default()))
        .collect();
    let tasks: Vec<_> = posts
        .iter()
        .enumerate()
        .map(|(id, post)| {
            let request = incoming("ann", None, &id.to_string(), call("meet", "{}"), deadline);
            let (serving, post) = (Arc::clone(&serving), Arc::clone(post));
            spawn_task(async move { serving.handle_stored(request, &*post).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for post in posts {
        assert_eq!(output(&post.single_reply()).0["content"][0]["text"], "met");
    }
}

#[tokio::test(start_paused = true)]
async fn running_requests_are_limited_per_caller() {
    let side = limited(ServeLimits {
        running_max: 3,
        caller_running_max: 2,
        ..ServeLimits::default()
    });
    let post = Arc::new(RecordingReplySink::default());
    let request = |who, id: usize| {
        let id = id.to_string();
        incoming(who, None, &id, call("hang", "{}"), side.deadline())
    };
    let mut tasks: Vec<_> = (0..5)
        .map(|id| side.start(request("ann", id), &post))
        .collect();
    ran(&side, 2).await;
    tasks.extend((0..2).map(|id| side.start(request("bob", id), &post)));
    ran(&side, 3).await;
    side.gate.add_permits(7);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(side.runs.count(), 7);
}

#[tokio::test(start_paused = true)]
async fn excess_requests_are_put_back() {
    let side = limited(ServeLimits {
        running_max: 1,
        waiting_max: 2,
        ..ServeLimits::default()
    });
    let post = Arc::new(RecordingReplySink::default());
    let tasks = ["1", "2"].map(|id| side.start(side.request(id, "hang"), &post));
    ran(&side, 1).await;
    let third = side.handle_stored(side.request("3", "hang")).await;
    assert_eq!(third.steps(), [ReplyStep::PutBack]);
    side.gate.add_permits(2);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(side.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn request_expiring_in_queue_never_runs() {
    let side = limited(ServeLimits {
        running_max: 1,
        ..ServeLimits::default()
    });
    let first = Arc::new(RecordingReplySink::default());
    let mut long = side.request("1", "hang");
    long.deadline = long.deadline.plus(bowline_testkit::serve_rig::TTL);
    let task = side.start(long, &first);
    ran(&side, 1).await;
    let second = side.handle_stored(side.request("2", "write")).await;
    assert_eq!(&*failure(second.single_reply()).code, "expired");
    assert_eq!(side.runs.count(), 1);
    side.gate.add_permits(1);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_reply_dead_letters_only_its_request() {
    let side = ServeRig::in_memory();
    let full = RecordingReplySink::refusing_with(ReplyError::Refused("mailbox full".into()));
    side.serving
        .handle_stored(side.request("1", "write"), &full)
        .await;
    let [ReplyStep::Reply(_), ReplyStep::Bury(reason)] = &full.steps()[..] else {
        panic!("{:?}", full.steps())
    };
    assert_eq!(reason, "mailbox full");
    // A slow call of another caller, in flight while the reply is refused.
    let other = Arc::new(RecordingReplySink::default());
    let bob = incoming("bob", None, "1", call("hang", "{}"), side.deadline());
    let task = side.start(bob, &other);
    ran(&side, 2).await;
    let full = RecordingReplySink::refusing_with(ReplyError::Refused("mailbox full".into()));
    side.serving
        .handle_stored(side.request("2", "write"), &full)
        .await;
    side.gate.add_permits(1);
    task.await.unwrap();
    assert_eq!(
        output(&other.single_reply()).0["content"][0]["text"],
        "let go"
    );
    assert_eq!(side.runs.count(), 3, "each once");
    // A requeued dead letter is replayed, not rerun.
    let later = side.handle_stored(side.request("1", "write")).await;
    assert_eq!(
        (run_number(&later.single_reply()), side.runs.count()),
        (json!(1), 3)
    );
}

#[tokio::test(start_paused = true)]
async fn missing_receipt_delays_no_other_request() {
    let side = limited(ServeLimits {
        running_max: 1,
        caller_running_max: 1,
        ..ServeLimits::default()
    });
    let receipts = Arc::new(Semaphore::new(0));
    let slow = Arc::new(RecordingReplySink {
        receipts: Some(Arc::clone(&receipts)),
        ..RecordingReplySink::default()
    });
    let task = side.start(side.request("1", "write"), &slow);
    slow.handed.notified().await;
    let other = side.handle_stored(side.request("2", "write")).await;
    assert_eq!(run_number(&other.single_reply()), 2);
    receipts.add_permits(1);
    task.await.unwrap();
    assert_eq!(run_number(&slow.single_reply()), 1);
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_stops_and_replies() {
    let side = limited(ServeLimits {
        running_max: 1,
        ..ServeLimits::default()
    });
    let (runs, waits) = (
        Arc::new(RecordingReplySink::default()),
        Arc::new(RecordingReplySink::default()),
    );
    let running = side.start(side.request("1", "hang"), &runs);
    ran(&side, 1).await;
    let waiting = side.start(side.request("2", "hang"), &waits);
    ran(&side, 1).await;
    let cancel = |who: &str, id: &str| side.serving.cancel_request(&who.into(), &id.into());
    assert!(!cancel("bob", "1"), "it is not his");
    assert!(cancel("ann", "2") && cancel("ann", "1") && !cancel("ann", "3"));
    running.await.unwrap();
    waiting.await.unwrap();
    let told = failure(runs.single_reply());
    assert_eq!(
        (&*told.code, told.class),
        ("cancelled", FailureClass::Cancelled)
    );
    assert_eq!(told.execution, ExecutionStatus::Unknown);
    let told = failure(waits.single_reply());
    assert_eq!(told.execution, ExecutionStatus::NotStarted);
    assert_eq!((side.runs.count(), side.serving.in_flight_count()), (1, 0));
    let again = side.handle_stored(side.request("1", "hang")).await;
    assert_eq!(
        &*failure(again.single_reply()).code,
        "cancelled",
        "and stays so"
    );
}

#[tokio::test(start_paused = true)]
async fn close_drains_then_cancels_requests() {
    let side = ServeRig::in_memory();
    let (quick, slow) = (
        Arc::new(RecordingReplySink::default()),
        Arc::new(RecordingReplySink::default()),
    );
    let first = side.start(side.request("1", "hang"), &quick);
    ran(&side, 1).await;
    let second = side.start(side.request("2", "hang"), &slow);
    ran(&side, 2).await;
    side.gate.add_permits(1);
    side.serving.close(Duration::from_secs(1)).await;
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(
        output(&quick.single_reply()).0["content"][0]["text"],
        "let go"
    );
    assert_eq!(&*failure(slow.single_reply()).code, "cancelled");
    let late = side.handle_stored(side.request("3", "write")).await;
    assert_eq!(late.steps(), [ReplyStep::PutBack]);
}
