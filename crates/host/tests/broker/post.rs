//! Requests, and a way back for their replies that a test looks at and breaks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::Failure;
use bowline_core::policy::RoleAllowlist;
use bowline_core::time::Now;
use bowline_host::broker::{
    Courier, ExecutorBackend, Incoming, Ledger, ReplyError, ServeLimits, Serving,
};
use bowline_host::ports::{Clock, SystemClock};
use bowline_host::tools::{ExecuteError, Toolbox};
use bowline_host::{BoxFuture, ToolExecutor, ToolOutput, ToolSchema};
use bowline_journal::{Journal, Memory};
use bowline_wire::broker::{Answer, Arguments, Ask, From};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

/// How long requests of these tests are worth answering.
pub(super) const TTL: Duration = Duration::from_secs(60);

/// What a courier did for its request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Reply(Answer),
    Ack,
    PutBack,
    Bury(String),
}

/// The way back of one request.
#[derive(Debug, Default)]
pub(super) struct Post {
    pub(super) steps: Mutex<Vec<Step>>,
    /// Why replies are not stored.
    pub(super) refuses: Option<ReplyError>,
    /// Receipts come once this has a permit.
    pub(super) receipts: Option<Arc<Semaphore>>,
    /// Where the result must be before the request ends, and under which id.
    pub(super) written: Option<(Ledger, &'static str)>,
    /// Told when a reply was handed over.
    pub(super) handed: Notify,
}

impl Post {
    pub(super) fn refusing(why: ReplyError) -> Self {
        Self {
            refuses: Some(why),
            ..Self::default()
        }
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        self.steps.lock().unwrap().clone()
    }

    fn note(&self, step: Step) {
        self.steps.lock().unwrap().push(step);
    }

    /// Returns the one reply, of a request that was ended after it.
    pub(super) fn answer(&self) -> Answer {
        match self.steps().as_slice() {
            [Step::Reply(answer), Step::Ack] => answer.clone(),
            other => panic!("{other:?}"),
        }
    }
}

impl Courier for Post {
    fn reply<'a>(&'a self, answer: &'a Answer) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(async move {
            self.note(Step::Reply(answer.clone()));
            self.handed.notify_one();
            if let Some(receipts) = &self.receipts {
                receipts.acquire().await.unwrap().forget();
            }
            match (&self.refuses, answer) {
                // Whatever says so briefly fits.
                (Some(ReplyError::TooLarge), Answer::Failed(_)) | (None, _) => Ok(()),
                (Some(why), _) => Err(why.clone()),
            }
        })
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some((ledger, id)) = &self.written {
                let known = ledger.answered("ann", id).await.unwrap();
                assert!(known.is_some(), "ended before it is written down");
            }
            self.note(Step::Ack);
        })
    }

    fn put_back(&self, _delay: Duration) -> BoxFuture<'_, ()> {
        self.note(Step::PutBack);
        Box::pin(std::future::ready(()))
    }

    fn bury(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        self.note(Step::Bury(reason.to_string()));
        Box::pin(std::future::ready(()))
    }
}

/// Counts what ran.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Tools of which each run is counted: `write`, `read` (which says that it only reads), `fail`,
/// `break`, `panic`, `refuse`, and `hang`, which ends when `gate` has a permit.
pub(super) fn tools(runs: &Runs, gate: &Arc<Semaphore>) -> Toolbox {
    let any = json!({"type": "object"});
    let (writes, reads, hangs) = (runs.clone(), runs.clone(), runs.clone());
    let (fails, gate) = (runs.clone(), Arc::clone(gate));
    let read = json!({"name": "read", "annotations": {"readOnlyHint": true}});
    Toolbox::default()
        .with(("write", "Writes."), &any, move |arguments, _| {
            let nth = writes.add();
            let value = json!({"nth": nth, "given": arguments.value()});
            async move { Ok(ToolOutput::of_value(&value)) }
        })
        .with_schema(ToolSchema::from_definition(&read).unwrap(), move |_, _| {
            let nth = reads.add();
            async move { Ok(ToolOutput::of_text(&nth.to_string())) }
        })
        .with(("fail", ""), &any, move |_, _| {
            fails.add();
            async { Ok(ToolOutput::failed("no")) }
        })
        .with(("break", ""), &any, |_, _| async {
            Err(ExecuteError::failed("it broke"))
        })
        .with(("panic", ""), &any, |_, _| async { panic!("a bug") })
        .with(("hang", ""), &any, move |_, _| {
            hangs.add();
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(ToolOutput::of_text("let go"))
            }
        })
}

/// A serving side, and what it is made of.
pub(super) struct Side {
    pub(super) serving: Arc<Serving>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runs: Runs,
    pub(super) gate: Arc<Semaphore>,
}

impl Side {
    pub(super) fn new() -> Self {
        Self::with(
            Arc::new(Memory::default()),
            &RoleAllowlist::unrestricted(),
            ServeLimits::default(),
        )
    }

    pub(super) fn with(
        journal: Arc<dyn Journal>,
        allowlist: &RoleAllowlist,
        limits: ServeLimits,
    ) -> Self {
        let (runs, gate) = (Runs::default(), Arc::new(Semaphore::new(0)));
        let executor: Arc<dyn ToolExecutor> = Arc::new(tools(&runs, &gate));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let backend = ExecutorBackend::new(executor, allowlist, Arc::clone(&clock));
        let ledger = Ledger::new(journal, "w").unwrap();
        let serving = Serving::new(Arc::new(backend), ledger, limits, Arc::clone(&clock));
        Self {
            serving: Arc::new(serving),
            clock,
            runs,
            gate,
        }
    }

    pub(super) fn until(&self) -> Now {
        self.clock.now().plus(TTL)
    }

    /// A request of `ann`, who has no role.
    pub(super) fn request(&self, id: &str, tool: &str) -> Incoming {
        incoming(("ann", None), id, call(tool, "{}"), self.until())
    }

    /// Carries a request to its end, and returns its way back.
    pub(super) async fn carried(&self, request: Incoming) -> Post {
        let post = Post::default();
        self.serving.stored(request, &post).await;
        post
    }

    /// Starts to carry a request.
    pub(super) fn start(&self, request: Incoming, post: &Arc<Post>) -> tokio::task::JoinHandle<()> {
        let (serving, post) = (Arc::clone(&self.serving), Arc::clone(post));
        spawn(async move { serving.stored(request, &*post).await })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests watch the tasks they start"
)]
pub(super) fn spawn(
    task: impl Future<Output = ()> + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(task)
}

pub(super) fn incoming(
    (who, role): (&str, Option<&str>),
    id: &str,
    body: Bytes,
    deadline: Now,
) -> Incoming {
    Incoming {
        from: From {
            session_id: who.into(),
            role: role.map(Into::into),
            principal: None,
        },
        principal: None,
        id: id.into(),
        body,
        deadline,
        sink: None,
    }
}

pub(super) fn call(tool: &str, arguments: &'static str) -> Bytes {
    let ask = Ask::Call {
        tool: tool.into(),
        server: None,
        arguments: Arguments::Object(Bytes::from_static(arguments.as_bytes())),
    };
    ask.to_bytes()
}

pub(super) fn failure(answer: Answer) -> Failure {
    match answer {
        Answer::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// Returns the result of a tool, and whether it came out of the journal.
pub(super) fn output(answer: &Answer) -> (Value, bool) {
    match answer {
        Answer::Output { result, again, .. } => (serde_json::from_slice(result).unwrap(), *again),
        other => panic!("{other:?}"),
    }
}

/// Returns how often the counted tool had run when it gave this.
pub(super) fn nth(answer: &Answer) -> Value {
    output(answer).0["structuredContent"]["nth"].clone()
}
