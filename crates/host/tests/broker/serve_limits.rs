//! Requests run side by side, as many as may, and one that goes wrong disturbs nobody.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{Class, Execution};
use bowline_core::policy::RoleAllowlist;
use bowline_host::ToolOutput;
use bowline_host::broker::{ExecutorBackend, Ledger, ReplyError, ServeLimits, Serving};
use bowline_host::ports::SystemClock;
use bowline_host::tools::Toolbox;
use bowline_journal::Memory;
use serde_json::json;
use tokio::sync::{Barrier, Semaphore};

use super::post::{Post, Side, Step, call, failure, incoming, nth, output, spawn};

fn limited(limits: ServeLimits) -> Side {
    Side::with(
        Arc::new(Memory::default()),
        &RoleAllowlist::unrestricted(),
        limits,
    )
}

async fn ran(side: &Side, count: usize) {
    while side.runs.count() < count {
        tokio::task::yield_now().await;
    }
    // Whatever else could run gets the chance to.
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
    assert_eq!(side.runs.count(), count);
}

#[tokio::test(start_paused = true)]
async fn four_calls_that_end_only_when_all_four_run_do_end() {
    let barrier = Arc::new(Barrier::new(4));
    let meet = Toolbox::default().with(("meet", ""), &json!({}), move |_, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(ToolOutput::of_text("met"))
        }
    });
    let clock = Arc::new(SystemClock::start());
    let list = RoleAllowlist::unrestricted();
    let backend = ExecutorBackend::new(Arc::new(meet), &list, clock.clone());
    let ledger = Ledger::new(Arc::new(Memory::default()), "w").unwrap();
    let limits = ServeLimits::default();
    let serving = Arc::new(Serving::new(
        Arc::new(backend),
        ledger,
        limits,
        clock.clone(),
    ));
    let deadline = bowline_host::ports::Clock::now(&*clock).plus(Duration::from_secs(9));
    let posts: Vec<_> = (0..4).map(|_| Arc::new(Post::default())).collect();
    let tasks: Vec<_> = posts
        .iter()
        .enumerate()
        .map(|(id, post)| {
            let request = incoming(("ann", None), &id.to_string(), call("meet", "{}"), deadline);
            let (serving, post) = (Arc::clone(&serving), Arc::clone(post));
            spawn(async move { serving.stored(request, &*post).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for post in posts {
        assert_eq!(output(&post.answer()).0["content"][0]["text"], "met");
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_run_than_may_in_all_and_of_one_caller() {
    let side = limited(ServeLimits {
        running_max: 3,
        caller_running_max: 2,
        ..ServeLimits::default()
    });
    let post = Arc::new(Post::default());
    let request = |who, id: usize| {
        let id = id.to_string();
        incoming((who, None), &id, call("hang", "{}"), side.until())
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
async fn more_than_can_wait_are_put_back() {
    let side = limited(ServeLimits {
        running_max: 1,
        waiting_max: 2,
        ..ServeLimits::default()
    });
    let post = Arc::new(Post::default());
    let tasks = ["1", "2"].map(|id| side.start(side.request(id, "hang"), &post));
    ran(&side, 1).await;
    let third = side.carried(side.request("3", "hang")).await;
    assert_eq!(third.steps(), [Step::PutBack]);
    side.gate.add_permits(2);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(side.runs.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_past_its_time_is_told_so_and_never_runs() {
    let side = limited(ServeLimits {
        running_max: 1,
        ..ServeLimits::default()
    });
    let first = Arc::new(Post::default());
    let mut long = side.request("1", "hang");
    long.deadline = long.deadline.plus(super::post::TTL);
    let task = side.start(long, &first);
    ran(&side, 1).await;
    let second = side.carried(side.request("2", "write")).await;
    assert_eq!(&*failure(second.answer()).code, "expired");
    assert_eq!(side.runs.count(), 1);
    side.gate.add_permits(1);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_refused_reply_is_a_dead_letter_of_its_request_and_disturbs_nobody() {
    let side = Side::new();
    let full = Post::refusing(ReplyError::Refused("mailbox full".into()));
    side.serving.stored(side.request("1", "write"), &full).await;
    let [Step::Reply(_), Step::Bury(reason)] = &full.steps()[..] else {
        panic!("{:?}", full.steps())
    };
    assert_eq!(reason, "mailbox full");
    // Somebody else's call, slow and under way while the reply is refused.
    let other = Arc::new(Post::default());
    let bob = incoming(("bob", None), "1", call("hang", "{}"), side.until());
    let task = side.start(bob, &other);
    ran(&side, 2).await;
    let full = Post::refusing(ReplyError::Refused("mailbox full".into()));
    side.serving.stored(side.request("2", "write"), &full).await;
    side.gate.add_permits(1);
    task.await.unwrap();
    assert_eq!(output(&other.answer()).0["content"][0]["text"], "let go");
    assert_eq!(side.runs.count(), 3, "each once");
    // A dead letter that is tried again is answered, and not run again.
    let later = side.carried(side.request("1", "write")).await;
    assert_eq!((nth(&later.answer()), side.runs.count()), (json!(1), 3));
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_does_not_come_keeps_no_other_request_waiting() {
    let side = limited(ServeLimits {
        running_max: 1,
        caller_running_max: 1,
        ..ServeLimits::default()
    });
    let receipts = Arc::new(Semaphore::new(0));
    let slow = Arc::new(Post {
        receipts: Some(Arc::clone(&receipts)),
        ..Post::default()
    });
    let task = side.start(side.request("1", "write"), &slow);
    slow.handed.notified().await;
    let other = side.carried(side.request("2", "write")).await;
    assert_eq!(nth(&other.answer()), 2);
    receipts.add_permits(1);
    task.await.unwrap();
    assert_eq!(nth(&slow.answer()), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_taken_back_stops_and_is_answered_so() {
    let side = limited(ServeLimits {
        running_max: 1,
        ..ServeLimits::default()
    });
    let (runs, waits) = (Arc::new(Post::default()), Arc::new(Post::default()));
    let running = side.start(side.request("1", "hang"), &runs);
    ran(&side, 1).await;
    let waiting = side.start(side.request("2", "hang"), &waits);
    ran(&side, 1).await;
    let cancel = |who: &str, id: &str| side.serving.cancel(&who.into(), &id.into());
    assert!(!cancel("bob", "1"), "it is not his");
    assert!(cancel("ann", "2") && cancel("ann", "1") && !cancel("ann", "3"));
    running.await.unwrap();
    waiting.await.unwrap();
    let told = failure(runs.answer());
    assert_eq!((&*told.code, told.class), ("cancelled", Class::Cancelled));
    assert_eq!(told.execution, Execution::Unknown);
    let told = failure(waits.answer());
    assert_eq!(told.execution, Execution::NotStarted);
    assert_eq!((side.runs.count(), side.serving.in_hand()), (1, 0));
    let again = side.carried(side.request("1", "hang")).await;
    assert_eq!(&*failure(again.answer()).code, "cancelled", "and stays so");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_requests_may_finish_and_the_rest_is_taken_back() {
    let side = Side::new();
    let (quick, slow) = (Arc::new(Post::default()), Arc::new(Post::default()));
    let first = side.start(side.request("1", "hang"), &quick);
    ran(&side, 1).await;
    let second = side.start(side.request("2", "hang"), &slow);
    ran(&side, 2).await;
    side.gate.add_permits(1);
    side.serving.close(Duration::from_secs(1)).await;
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(output(&quick.answer()).0["content"][0]["text"], "let go");
    assert_eq!(&*failure(slow.answer()).code, "cancelled");
    let late = side.carried(side.request("3", "write")).await;
    assert_eq!(late.steps(), [Step::PutBack]);
}
