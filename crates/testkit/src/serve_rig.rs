//! Serve requests, and a recording reply sink with injectable failures.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_broker::frames::{
    BrokerArguments, BrokerRequest, BrokerResponse, MailboxMessage, MessageBody, MessageDraft,
    MessageSender, REQUEST_KIND,
};
use bowline_broker::{
    ExecutorBackend, ReplyError, ReplySink, RequestLedger, ServeEngine, ServeLimits, ServeRequest,
};
use bowline_core::BoxFuture;
use bowline_core::error::FailureReport;
use bowline_core::policy::RoleAllowlist;
use bowline_core::time::MonotonicTime;
use bowline_journal::{Journal, MemoryJournal};
use bowline_runtime::{Clock, SystemClock};
use bowline_tools::{ExecuteError, Toolbox};
use bowline_tools::{ToolExecutor, ToolOutput, ToolSchema};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};

use crate::{spawn_task, wait_bounded};

/// TTL of the requests in these tests.
pub const TTL: Duration = Duration::from_secs(60);

/// A call of the reply sink.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplyStep {
    Reply(BrokerResponse),
    Ack,
    PutBack,
    Bury(String),
}

/// Reply sink of one request.
#[derive(Debug, Default)]
pub struct RecordingReplySink {
    pub steps: Mutex<Vec<ReplyStep>>,
    /// Error of every reply.
    pub refuses: Option<ReplyError>,
    /// Receipts wait for a permit of this semaphore.
    pub receipts: Option<Arc<Semaphore>>,
    /// Ledger and request id in which the result must be recorded before the ack.
    pub written: Option<(RequestLedger, &'static str)>,
    /// Notified when a reply arrives.
    pub handed: Notify,
}

impl RecordingReplySink {
    pub fn refusing_with(why: ReplyError) -> Self {
        Self {
            refuses: Some(why),
            ..Self::default()
        }
    }

    pub fn steps(&self) -> Vec<ReplyStep> {
        self.steps.lock().unwrap().clone()
    }

    fn record_step(&self, step: ReplyStep) {
        self.steps.lock().unwrap().push(step);
    }

    /// Returns the only reply, which precedes the ack.
    pub fn single_reply(&self) -> BrokerResponse {
        match self.steps().as_slice() {
            [ReplyStep::Reply(answer), ReplyStep::Ack] => answer.clone(),
            other => panic!("{other:?}"),
        }
    }
}

impl ReplySink for RecordingReplySink {
    fn store_reply<'a>(
        &'a self,
        answer: &'a BrokerResponse,
    ) -> BoxFuture<'a, Result<(), ReplyError>> {
        Box::pin(async move {
            self.record_step(ReplyStep::Reply(answer.clone()));
            self.handed.notify_one();
            if let Some(receipts) = &self.receipts {
                receipts.acquire().await.unwrap().forget();
            }
            match (&self.refuses, answer) {
                // A short error fits.
                (Some(ReplyError::TooLarge), BrokerResponse::Failed(_)) | (None, _) => Ok(()),
                (Some(why), _) => Err(why.clone()),
            }
        })
    }

    fn ack(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some((ledger, id)) = &self.written {
                let known = ledger.find_response("ann", id).await.unwrap();
                assert!(known.is_some(), "ended before it is written down");
            }
            self.record_step(ReplyStep::Ack);
        })
    }

    fn put_back(&self, _delay: Duration) -> BoxFuture<'_, ()> {
        self.record_step(ReplyStep::PutBack);
        Box::pin(std::future::ready(()))
    }

    fn dead_letter(&self, reason: Arc<str>) -> BoxFuture<'_, ()> {
        self.record_step(ReplyStep::Bury(reason.to_string()));
        Box::pin(std::future::ready(()))
    }
}

/// Counts tool runs.
#[derive(Clone, Debug, Default)]
pub struct RunCounter(Arc<watch::Sender<usize>>);

impl RunCounter {
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    pub fn add(&self) -> usize {
        let mut nth = 0;
        self.0.send_modify(|count| {
            *count += 1;
            nth = *count;
        });
        nth
    }

    /// Waits until this many tools started to run.
    pub async fn wait_for(&self, count: usize) {
        let mut runs = self.0.subscribe();
        wait_bounded(runs.wait_for(|runs| *runs >= count))
            .await
            .unwrap();
    }
}

/// Tools with counted runs: `write`, `read` (marked read-only), `fail`, `break`, `panic`, `refuse`,
/// and `hang`, which ends when `gate` has a permit.
pub fn tools(runs: &RunCounter, gate: &Arc<Semaphore>) -> Toolbox {
    let any = json!({"type": "object"});
    let (writes, reads, hangs) = (runs.clone(), runs.clone(), runs.clone());
    let (fails, gate) = (runs.clone(), Arc::clone(gate));
    let read = json!({"name": "read", "annotations": {"readOnlyHint": true}});
    Toolbox::default()
        .with("write", "Writes.", &any, move |arguments, _| {
            let nth = writes.add();
            let value = json!({"nth": nth, "given": arguments.to_value()});
            async move { Ok(ToolOutput::from_value(&value)) }
        })
        .with_schema(ToolSchema::from_definition(&read).unwrap(), move |_, _| {
            let nth = reads.add();
            async move { Ok(ToolOutput::from_text(&nth.to_string())) }
        })
        .with("fail", "", &any, move |_, _| {
            fails.add();
            async { Ok(ToolOutput::from_error("no")) }
        })
        .with("break", "", &any, |_, _| async {
            Err(ExecuteError::outcome_unknown("it broke"))
        })
        .with("panic", "", &any, |_, _| async { panic!("a bug") })
        .with("hang", "", &any, move |_, _| {
            hangs.add();
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok(ToolOutput::from_text("let go"))
            }
        })
}

/// A serve engine and its parts.
#[derive(Debug)]
pub struct ServeRig {
    pub serving: Arc<ServeEngine>,
    pub clock: Arc<dyn Clock>,
    pub runs: RunCounter,
    pub gate: Arc<Semaphore>,
}

impl ServeRig {
    pub fn in_memory() -> Self {
        Self::with_journal(
            Arc::new(MemoryJournal::default()),
            &RoleAllowlist::unrestricted(),
            ServeLimits::default(),
        )
    }

    pub fn with_journal(
        journal: Arc<dyn Journal>,
        allowlist: &RoleAllowlist,
        limits: ServeLimits,
    ) -> Self {
        let (runs, gate) = (RunCounter::default(), Arc::new(Semaphore::new(0)));
        let executor: Arc<dyn ToolExecutor> = Arc::new(tools(&runs, &gate));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let backend = ExecutorBackend::new(executor, allowlist, Arc::clone(&clock));
        let ledger = RequestLedger::new(journal, "w").unwrap();
        let serving = ServeEngine::new(Arc::new(backend), ledger, limits, Arc::clone(&clock));
        Self {
            serving: Arc::new(serving),
            clock,
            runs,
            gate,
        }
    }

    pub fn deadline(&self) -> MonotonicTime {
        self.clock.now().plus(TTL)
    }

    /// A request of `ann`, without a role.
    pub fn request(&self, id: &str, tool: &str) -> ServeRequest {
        incoming("ann", None, id, call(tool, "{}"), self.deadline())
    }

    /// Handles a request to the end and returns the reply sink.
    pub async fn handle_stored(&self, request: ServeRequest) -> RecordingReplySink {
        let post = RecordingReplySink::default();
        self.serving.handle_stored(request, &post).await;
        post
    }

    /// Starts to handle a request.
    pub fn start(
        &self,
        request: ServeRequest,
        post: &Arc<RecordingReplySink>,
    ) -> tokio::task::JoinHandle<()> {
        let (serving, post) = (Arc::clone(&self.serving), Arc::clone(post));
        spawn_task(async move { serving.handle_stored(request, &*post).await })
    }
}

/// A message with a request, as it arrives.
pub fn request_message(id: &str, body: &[u8]) -> MailboxMessage {
    MailboxMessage::new(&MessageDraft {
        id,
        kind: REQUEST_KIND,
        body: MessageBody::Json(body),
        correlation_id: None,
        ttl_ms: None,
        created_at_ms: 0,
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers have no other use of the body"
)]
pub fn incoming(
    who: &str,
    role: Option<&str>,
    id: &str,
    body: Bytes,
    deadline: MonotonicTime,
) -> ServeRequest {
    ServeRequest {
        sender: MessageSender {
            session_id: who.into(),
            role: role.map(Into::into),
            principal: None,
        },
        principal: None,
        message: request_message(id, &body),
        deadline,
        client: None,
    }
}

pub fn call(tool: &str, arguments: &'static str) -> Bytes {
    let ask = BrokerRequest::Call {
        tool: tool.into(),
        server: None,
        arguments: BrokerArguments::Object(Bytes::from_static(arguments.as_bytes())),
    };
    ask.to_bytes()
}

pub fn failure(answer: BrokerResponse) -> FailureReport {
    match answer {
        BrokerResponse::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

/// Returns the result of a tool, and whether the journal replayed it.
pub fn output(answer: &BrokerResponse) -> (Value, bool) {
    match answer {
        BrokerResponse::Output {
            result,
            from_journal,
            ..
        } => (serde_json::from_slice(result).unwrap(), *from_journal),
        other => panic!("{other:?}"),
    }
}

/// Returns the run count at the time of this response.
pub fn run_number(answer: &BrokerResponse) -> Value {
    output(answer).0["structuredContent"]["nth"].clone()
}
