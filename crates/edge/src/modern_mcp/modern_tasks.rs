//! Tasks of modern clients: status, input requests, result and cancellation.

pub(crate) mod task_id;
pub(super) mod task_waiters;

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::call::{
    BodyKind, CallReply, CallRequest, CallSubject, RequestMessage, TaskOperation,
};
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::{Era, StatelessContext};
use bowline_core::error::CallError;
use bowline_core::task_table::OriginProcess;
use bowline_link::relay_input_requests;
use bowline_wire::era::error_translation as era_error;
use bowline_wire::era::request_meta::supports_tasks;
use bowline_wire::era::result_translation::{ResultContext, to_modern};
use bowline_wire::era::task_translation::{self, ParsedTask, TaskOutcome, TaskStatus};
use bowline_wire::mcp::{code, method};
use bowline_wire::splice::{replace_span, to_literal};
use bowline_wire::{ByteSpan, ObjectEditor, object};
use bytes::Bytes;

use super::ModernRequest;
use super::sessionless_clients::SessionlessClient;
use crate::call::call_params::{CallKind, CallParams as Named, parse_params};
use crate::call::modern_call::{enter_client, round_options};
use crate::call::modern_call_handle::{ModernCallHandle, RoundOptions};
use crate::call::modern_response::{ModernResponder, endpoint_info};
use crate::call::{CallResponse, CallResult};
use crate::response_body::EdgeResponse;
use task_id::TaskId;

pub(crate) use task_waiters::TaskWaiters;

/// Capability of clients that accept tasks as results.
pub(crate) const TASKS_CAPABILITY: &[u8] =
    br#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// Empty acknowledgement.
const ACKNOWLEDGED_RESULT: &[u8] = br#"{"resultType":"complete"}"#;

/// Removes the related-task id from a legacy result, because the id is internal to the server.
fn strip_related_task(result: &[u8]) -> Cow<'_, [u8]> {
    let mut editor = ObjectEditor::new(result);
    if let Some(at) = object::field(result, "_meta") {
        let key = task_translation::RELATED_TASK_KEY.as_bytes();
        editor.retain(at, |name, _| name != key);
    }
    editor.finish_cow()
}

/// A request about a task.
#[derive(Debug)]
struct TaskRequest {
    responder: ModernResponder,
    client: Arc<SessionlessClient>,
    options: RoundOptions,
    /// Task id as known to the client.
    sealed_id: String,
    task: TaskId,
    /// Client handle while the server is called.
    handle: Arc<ModernCallHandle>,
}

/// Handles a request about a task.
pub(super) async fn handle_task(
    modern_request: ModernRequest<'_>,
    operation: TaskOperation,
) -> EdgeResponse {
    let params = modern_request
        .message
        .params_span()
        .map_or_else(Bytes::new, |at| {
            modern_request.message.bytes().slice(at.start..at.end)
        });
    let kind = CallKind::Task(operation);
    let named = parse_params(&params, kind);
    let subject = match &named {
        Some(named) => named.subject.clone(),
        None => CallSubject::Task {
            id: "".into(),
            operation,
        },
    };
    let responder = ModernResponder::from_request(&modern_request, kind, subject, params);
    if !supports_tasks(
        modern_request
            .capabilities_at
            .slice(modern_request.params()),
    ) {
        return responder.missing_capabilities(TASKS_CAPABILITY).into_http();
    }
    let Some(named) = named else {
        return responder
            .invalid_params(kind.missing_target_text())
            .into_http();
    };
    let sealed = named.subject.name().as_ref().to_owned();
    let Some(request) = TaskRequest::open(&modern_request, responder, &named, operation) else {
        let failed = ModernResponder::from_request(
            &modern_request,
            kind,
            named.subject.clone(),
            Bytes::new(),
        );
        return failed.call_error(&unknown_task(&sealed)).into_http();
    };
    let response = match operation {
        TaskOperation::Get | TaskOperation::Result => request.get_task().await,
        TaskOperation::Update => request.update_task().await,
        TaskOperation::Cancel => request.cancel_task().await,
    };
    response.into_http()
}
/// Refuses task notifications to clients without task support.
pub(super) fn reject_task_ids(request: &ModernRequest<'_>) -> Option<EdgeResponse> {
    let params = request.params();
    let filter = object::field(params, "notifications")?.slice(params);
    object::field(filter, "taskIds")?;
    if supports_tasks(request.capabilities_at.slice(params)) {
        return None;
    }
    let nothing = CallSubject::Tool("".into());
    let responder = ModernResponder::from_request(request, CallKind::Tool, nothing, Bytes::new());
    Some(responder.missing_capabilities(TASKS_CAPABILITY).into_http())
}

fn unknown_task(id: &str) -> CallError {
    CallError::UnknownTask { task: id.into() }
}

impl TaskRequest {
    /// Opens a task id; `None` if not issued to this caller.
    fn open(
        request: &ModernRequest<'_>,
        mut responder: ModernResponder,
        named: &Named,
        operation: TaskOperation,
    ) -> Option<Self> {
        let edge = Arc::clone(&responder.edge);
        let sealed = named.subject.name().as_ref().to_owned();
        let (seal, principal_name) = (edge.sessions.seal(), &responder.principal.name);
        let task = task_id::open_id(seal, principal_name, edge.modern_calls.boot_id, &sealed)?;
        let wants = round_options(request, &responder.params, named);
        let at = ByteSpan::from_range(&named.name_at);
        let literal = to_literal(&task.server_id);
        responder.params = replace_span(&responder.params, at, &literal).into();
        responder.subject = CallSubject::Task {
            id: Arc::clone(&task.server_id),
            operation,
        };
        let client = enter_client(request, &responder);
        let (end, _, _cancelled) = ModernCallHandle::new(Arc::clone(&client), wants.clone());
        Some(Self {
            responder,
            client,
            options: wants,
            sealed_id: sealed,
            task,
            handle: end,
        })
    }

    /// Calls the server of the task.
    async fn call_server(&self, verb: TaskOperation) -> CallResult {
        match self.build_call(verb, &self.handle) {
            Some(call) => self.responder.edge.host.call(&call).await,
            None => Err(unknown_task(&self.sealed_id)),
        }
    }

    /// Fetches the task from its server. After a gateway restart the id may name a different task,
    /// since a server may reuse ids.
    async fn fetch_task(&self) -> Result<CallReply, CallResponse> {
        let reply = match self.call_server(TaskOperation::Get).await {
            Ok(reply) if reply.response.body == BodyKind::Error => {
                return Err(self.responder.server_error(&self.handle, &reply));
            }
            Ok(reply) => reply,
            Err(failed) => return Err(self.responder.call_error(&failed)),
        };
        let inside = reply.response.body_bytes();
        let created = object::text_field(inside, "createdAt").unwrap_or_default();
        if self.task.origin.origin_process == OriginProcess::Earlier
            && !self.task.is_created_at(&created)
        {
            return Err(self.responder.call_error(&unknown_task(&self.sealed_id)));
        }
        Ok(reply)
    }

    /// Ensures that a request changes only the caller's own task.
    async fn check_ownership(&self) -> Result<(), CallResponse> {
        match self.task.origin.origin_process {
            OriginProcess::Current => Ok(()),
            OriginProcess::Earlier => self.fetch_task().await.map(|_| ()),
        }
    }

    fn build_call(
        &self,
        verb: TaskOperation,
        handle: &Arc<ModernCallHandle>,
    ) -> Option<CallRequest> {
        let responder = &self.responder;
        let Named {
            subject, name_at, ..
        } = parse_params(&responder.params, CallKind::Task(verb))?;
        Some(CallRequest {
            principal: Arc::clone(&responder.principal),
            scope: responder.scope.clone(),
            subject,
            name_at,
            wants_task: false,
            deadline: None,
            run: None,
            idempotency_key: None,
            stateless: Some(Box::new(StatelessContext {
                header_claims: None,
                is_continuation: false,
                task_id: Some(self.task.origin.clone()),
            })),
            message: RequestMessage {
                id: responder.id.clone(),
                client: Some(Arc::clone(handle) as Arc<dyn ClientHandle>),
                era: Era::Modern,
                ..RequestMessage::new(responder.params.clone())
            },
        })
    }

    async fn get_task(&self) -> CallResponse {
        let reply = match self.fetch_task().await {
            Ok(reply) => reply,
            Err(refused) => return refused,
        };
        let inside = reply.response.shared_body();
        match reply.response.era {
            Era::Modern => self.modern_status(&inside),
            Era::Legacy => self.legacy_status(&inside).await,
        }
    }

    /// Writes a modern server's task with the client's id and the server's name in input requests.
    fn modern_status(&self, task: &[u8]) -> CallResponse {
        let server = Arc::clone(&self.task.origin.server);
        let marked = match object::field(task, "inputRequests") {
            Some(at) => relay_input_requests(&server, self.options.capabilities, task, at),
            None => return self.responder.result_response(&self.with_caller_id(task)),
        };
        match marked {
            Ok(task) => self.responder.result_response(&self.with_caller_id(&task)),
            Err(unfit) => self.responder.refuse_server_request(server, &unfit),
        }
    }

    /// Replaces the server's task id by the client's.
    fn with_caller_id(&self, task: &[u8]) -> Vec<u8> {
        let Some(read) = ParsedTask::parse(task) else {
            return task.to_vec();
        };
        replace_span(task, read.id_at, &to_literal(&self.sealed_id))
    }

    /// Writes the state of a legacy server's task, with its result or input requests.
    async fn legacy_status(&self, task: &[u8]) -> CallResponse {
        let Some(status) = ParsedTask::parse(task).map(|task| task.status) else {
            return self.responder.result_response(&self.with_caller_id(task));
        };
        let whole = match status {
            TaskStatus::Completed | TaskStatus::Failed => {
                let reply = match self.take_waiter_reply() {
                    Some(reply) => Ok(reply),
                    None => self.call_server(TaskOperation::Result).await,
                };
                match reply {
                    Ok(reply) => self.finished_status(task, &reply),
                    // An unknown result does not finish the task.
                    Err(failed) => return self.responder.call_error(&failed),
                }
            }
            TaskStatus::InputRequired => {
                let requests = self.wait_for_requests().await;
                let outcome = match &requests {
                    Some(requests) => TaskOutcome::InputRequests(requests),
                    None => TaskOutcome::Pending,
                };
                let task = task_translation::to_modern(task, outcome);
                // No request for the client is pending yet.
                match requests {
                    Some(_) => task,
                    None => with_status(&task, TaskStatus::Working),
                }
            }
            TaskStatus::Working | TaskStatus::Cancelled => {
                task_translation::to_modern(task, TaskOutcome::Pending)
            }
        };
        self.responder.result_response(&self.with_caller_id(&whole))
    }

    /// Writes a finished task with its result. A tool error is a result here, although legacy
    /// servers may report the task as failed.
    fn finished_status(&self, task: &[u8], reply: &CallReply) -> Vec<u8> {
        let inside = reply.response.body_bytes();
        match reply.response.body {
            BodyKind::Result => {
                let info = endpoint_info(
                    &self.responder.edge,
                    &self.responder.principal,
                    &self.responder.scope,
                );
                let context = ResultContext {
                    server_info: Some(&info),
                    hint: None,
                };
                let result = to_modern(&strip_related_task(inside), method::TOOLS_CALL, &context);
                with_status(
                    &task_translation::to_modern(task, TaskOutcome::Result(&result)),
                    TaskStatus::Completed,
                )
            }
            BodyKind::Error => {
                let error = era_error::to_modern(inside, None);
                with_status(
                    &task_translation::to_modern(task, TaskOutcome::Error(&error)),
                    TaskStatus::Failed,
                )
            }
        }
    }

    async fn update_task(&self) -> CallResponse {
        let answers = object::field(&self.responder.params, "inputResponses");
        let answers = answers.map(|at| at.slice(&self.responder.params));
        let Some(answers) = answers.filter(|answers| answers.starts_with(b"{")) else {
            return self
                .responder
                .invalid_params("tasks/update needs an object inputResponses");
        };
        if self.answer_waiter(answers) {
            return self.responder.result_response(ACKNOWLEDGED_RESULT);
        }
        if let Err(refused) = self.check_ownership().await {
            return refused;
        }
        match self.call_server(TaskOperation::Update).await {
            Ok(reply) if reply.response.era == Era::Modern => self.relay_reply(&reply),
            // Legacy servers do not know `tasks/update`, but do know the task or not.
            Ok(reply) if is_method_not_found(&reply) => self.acknowledge_known().await,
            Ok(reply) if reply.response.body == BodyKind::Error => {
                self.responder.server_error(&self.handle, &reply)
            }
            Ok(_) => self.responder.result_response(ACKNOWLEDGED_RESULT),
            Err(failed) => self.responder.call_error(&failed),
        }
    }

    async fn cancel_task(&self) -> CallResponse {
        if let Err(refused) = self.check_ownership().await {
            return refused;
        }
        match self.call_server(TaskOperation::Cancel).await {
            Ok(reply) if reply.response.era == Era::Modern => self.relay_reply(&reply),
            Ok(reply) if reply.response.body == BodyKind::Result => {
                self.responder.result_response(ACKNOWLEDGED_RESULT)
            }
            // Cancelling a finished task is not an error.
            Ok(_) => self.acknowledge_known().await,
            Err(failed) => self.responder.call_error(&failed),
        }
    }

    /// Relays a modern server's reply.
    fn relay_reply(&self, reply: &CallReply) -> CallResponse {
        match reply.response.body {
            BodyKind::Error => self.responder.server_error(&self.handle, reply),
            BodyKind::Result => {
                let inside = reply.response.shared_body();
                self.responder
                    .result_response(&self.with_caller_id(&inside))
            }
        }
    }

    /// Acknowledges if the server knows the task.
    async fn acknowledge_known(&self) -> CallResponse {
        match self.fetch_task().await {
            Ok(_) => self.responder.result_response(ACKNOWLEDGED_RESULT),
            Err(refused) => refused,
        }
    }
}

/// Returns whether a server does not know the method.
fn is_method_not_found(reply: &CallReply) -> bool {
    let inside = reply.response.body_bytes();
    reply.response.body == BodyKind::Error
        && era_error::error_code(inside) == Some(code::METHOD_NOT_FOUND)
}

/// Writes a task with a different status.
fn with_status(task: &[u8], status: TaskStatus) -> Vec<u8> {
    let Some(at) = object::field(task, "status") else {
        return task.to_vec();
    };
    replace_span(task, at, format!("\"{}\"", status.as_str()).as_bytes())
}
