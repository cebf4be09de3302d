//! Tasks of callers without a session: how they stand, what they ask, and their end.

pub(super) mod attended;
pub(super) mod id;

use std::sync::Arc;

use bowline_core::call::{Body, Call, Reply, Route, Subject, TaskVerb};
use bowline_core::caller::CallerEnd;
use bowline_core::era::{Era, Stateless};
use bowline_core::error::CallError;
use bowline_core::tasks::MadeIn;
use bowline_host::catalog::Found;
use bowline_link::relayed;
use bowline_wire::era::error as era_error;
use bowline_wire::era::meta::takes_tasks;
use bowline_wire::era::result::{Completing, to_modern};
use bowline_wire::era::tasks::{self, Came, Status, Task};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;

use super::call::written::Written;
use super::call::{Told, client_of, wants};
use super::client::Client;
use super::end::{End, Outcome, Wants};
use super::read::Asked;
use super::result::info_of;
use crate::edge::body::Answer;
use crate::edge::mcp::call::{Ask, Asked as Named, read_params};
use id::TaskId;

pub(super) use attended::Attended;

/// The capability of clients that take tasks for answers.
pub(super) const TASKS: &[u8] = br#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

/// What acknowledges a request and says nothing else.
const ACKNOWLEDGED: &[u8] = br#"{"resultType":"complete"}"#;

/// What a tool of a server of the other era says of running as a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Support {
    Forbidden,
    Optional,
    Required,
}

/// Reads what is said of the tool that is called, where its server is of the other era, and the
/// way to it.
fn support(told: &Told) -> Option<(Support, Arc<Route>)> {
    if told.ask != Ask::Tool {
        return None;
    }
    let host = &told.edge.host;
    let (catalog, scope) = (host.catalog(), &told.scope);
    let meant = host.meant(scope, &told.subject, &told.params);
    let Found::Route(route) = catalog.find(scope, &meant) else {
        return None;
    };
    let offer = catalog.offer(&route.server)?;
    // A server of this era decides by itself.
    if object::field(&offer.initialize, "supportedVersions").is_some() {
        return None;
    }
    let item = offer
        .tools
        .items
        .iter()
        .find(|item| item.route.name == route.name)?;
    let execution = object::field(&item.plain, "execution")?.of(&item.plain);
    let support = match object::text(execution, "taskSupport")?.as_ref() {
        "required" => Support::Required,
        "optional" => Support::Optional,
        _ => Support::Forbidden,
    };
    Some((support, route))
}

/// Whether the tool that is called runs as a task only.
pub(super) fn is_required(told: &Told) -> bool {
    matches!(support(told), Some((Support::Required, _)))
}

/// Returns the parameters with or without the wish for a task, where they must be others: in this
/// era nobody says such a wish, and servers of the other one do nothing without. What is queued is
/// more than a task: it outlives its server, so it is made none where it need not be.
pub(super) fn wanted(told: &Told, says: bool) -> Option<Bytes> {
    let wants = told.tasks
        && match support(told) {
            Some((Support::Required, _)) => true,
            Some((Support::Optional, route)) => route.queue.is_none(),
            Some((Support::Forbidden, _)) | None => false,
        };
    if !wants && !says {
        return None;
    }
    let first: &[u8] = if wants { b"\"task\":{}" } else { b"" };
    Some(without(&told.params, "task", first).into())
}

/// Writes an object without one of its members, after what is to stand first.
fn without(object: &[u8], member: &str, first: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.len() + first.len());
    out.push(b'{');
    out.extend_from_slice(first);
    for (key, at) in object::fields(object) {
        if key == member {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, &key);
        out.push(b':');
        out.extend_from_slice(at.of(object));
    }
    out.push(b'}');
    out
}

/// Writes a result of the other era without the name of its task: that is its server's.
fn unrelated(result: &[u8]) -> Vec<u8> {
    let Some(at) = object::field(result, "_meta") else {
        return result.to_vec();
    };
    replace(result, at, &without(at.of(result), tasks::RELATED, b""))
}

/// One request about a task.
#[derive(Debug)]
struct Request {
    told: Told,
    client: Arc<Client>,
    wants: Wants,
    /// The id as its caller has it.
    sealed: String,
    task: TaskId,
    /// Stands for the caller while its server is asked.
    end: Arc<End>,
}

/// Answers a request about a task.
pub(super) async fn answer(asked: Asked<'_>, verb: TaskVerb) -> Answer {
    let params = asked.message.params_span().map_or_else(Bytes::new, |at| {
        asked.message.bytes().slice(at.start..at.end)
    });
    let ask = Ask::Task(verb);
    let named = read_params(&params, ask);
    let subject = match &named {
        Some(named) => named.subject.clone(),
        None => Subject::Task {
            id: "".into(),
            verb,
        },
    };
    let told = Told::of(&asked, ask, subject, params);
    if !takes_tasks(asked.capabilities.of(asked.params())) {
        return told.lacks(TASKS).alone();
    }
    let Some(named) = named else {
        return told.invalid(ask.missing());
    };
    let sealed = named.subject.name().as_ref().to_owned();
    let Some(request) = Request::open(&asked, told, &named, verb) else {
        let failed = Told::of(&asked, ask, named.subject.clone(), Bytes::new());
        return failed.failed(&unknown(&sealed));
    };
    let written = match verb {
        TaskVerb::Get | TaskVerb::Result => request.get().await,
        TaskVerb::Update => request.update().await,
        TaskVerb::Cancel => request.cancel().await,
    };
    written.alone()
}
/// Refuses to tell of tasks who does not take them.
pub(super) fn refuse_news(asked: &Asked<'_>) -> Option<Answer> {
    let params = asked.params();
    let news = object::field(params, "notifications")?.of(params);
    object::field(news, "taskIds")?;
    if takes_tasks(asked.capabilities.of(params)) {
        return None;
    }
    let nothing = Subject::Tool("".into());
    let told = Told::of(asked, Ask::Tool, nothing, Bytes::new());
    Some(told.lacks(TASKS).alone())
}

fn unknown(id: &str) -> CallError {
    CallError::UnknownTask { task: id.into() }
}

impl Request {
    /// Opens the id of a task; `None` where it is none of this caller's.
    fn open(asked: &Asked<'_>, mut told: Told, named: &Named, verb: TaskVerb) -> Option<Self> {
        let edge = Arc::clone(&told.edge);
        let sealed = named.subject.name().as_ref().to_owned();
        let (seal, who) = (edge.sessions.sealing(), &told.principal.name);
        let task = id::open(seal, (who, edge.calls.boot), &sealed)?;
        let wants = wants(asked, &told.params, named);
        let mut literal = Vec::new();
        write_string(&mut literal, &task.inner);
        let at = bowline_wire::Span {
            start: named.name_at.start,
            end: named.name_at.end,
        };
        told.params = replace(&told.params, at, &literal).into();
        told.subject = Subject::Task {
            id: Arc::clone(&task.inner),
            verb,
        };
        let client = client_of(asked, &told);
        let (end, _, _cancelled) = End::new(Arc::clone(&client), wants.clone());
        Some(Self {
            told,
            client,
            wants,
            sealed,
            task,
            end,
        })
    }

    /// Asks the server of the task.
    async fn call(&self, verb: TaskVerb) -> Outcome {
        match self.to_call(verb, &self.end) {
            Some(call) => self.told.edge.host.call(&call).await,
            None => Err(unknown(&self.sealed)),
        }
    }

    /// Asks the server how the task stands. What one process after the one that made it finds
    /// under its id may be another's, where a server gives out its ids again.
    async fn found(&self) -> Result<Reply, Written> {
        let reply = match self.call(TaskVerb::Get).await {
            Ok(reply) if reply.body == Body::Error => {
                return Err(self.told.refused(&self.end, &reply));
            }
            Ok(reply) => reply,
            Err(failed) => return Err(self.told.failure(&failed)),
        };
        let inside = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        let created = object::text(inside, "createdAt").unwrap_or_default();
        if self.task.sealed.made_in == MadeIn::Earlier && !self.task.is_of(&created) {
            return Err(self.told.failure(&unknown(&self.sealed)));
        }
        Ok(reply)
    }

    /// Makes sure that a request changes no task but its caller's.
    async fn checked(&self) -> Result<(), Written> {
        match self.task.sealed.made_in {
            MadeIn::This => Ok(()),
            MadeIn::Earlier => self.found().await.map(|_| ()),
        }
    }

    fn to_call(&self, verb: TaskVerb, end: &Arc<End>) -> Option<Call> {
        let told = &self.told;
        let Named {
            subject, name_at, ..
        } = read_params(&told.params, Ask::Task(verb))?;
        Some(Call {
            principal: Arc::clone(&told.principal),
            scope: told.scope.clone(),
            subject,
            params: told.params.clone(),
            name_at,
            makes_task: false,
            progress_at: None,
            id: told.id.clone(),
            deadline: None,
            caller: Some(Arc::clone(end) as Arc<dyn CallerEnd>),
            trace: None,
            run: None,
            key: None,
            stateless: Some(Box::new(Stateless {
                claims: None,
                retried: false,
                task: Some(self.task.sealed.clone()),
            })),
        })
    }

    async fn get(&self) -> Written {
        let reply = match self.found().await {
            Ok(reply) => reply,
            Err(refused) => return refused,
        };
        let inside = reply.answer.slice(reply.body_at.clone());
        match reply.era {
            Era::Modern => self.asked(&inside),
            Era::Legacy => self.stands(&inside).await,
        }
    }

    /// Writes a task of a server of this era as it is, but for its id and for the name of the
    /// server in what it asks.
    fn asked(&self, task: &[u8]) -> Written {
        let server = Arc::clone(&self.task.sealed.server);
        let marked = match object::field(task, "inputRequests") {
            Some(at) => relayed(&server, self.wants.abilities, task, at),
            None => return self.told.result(&self.named(task)),
        };
        match marked {
            Ok(task) => self.told.result(&self.named(&task)),
            Err(unfit) => self.told.unasked(server, &unfit),
        }
    }

    /// Puts the caller's id of the task in the place of its server's.
    fn named(&self, task: &[u8]) -> Vec<u8> {
        let Some(read) = Task::read(task) else {
            return task.to_vec();
        };
        let mut literal = Vec::new();
        write_string(&mut literal, &self.sealed);
        replace(task, read.id_at, &literal)
    }

    /// Says how a task of a server of the other era stands, with what it came to or asks.
    async fn stands(&self, task: &[u8]) -> Written {
        let Some(status) = Task::read(task).map(|task| task.status) else {
            return self.told.result(&self.named(task));
        };
        let whole = match status {
            Status::Completed | Status::Failed => {
                let reply = match self.attended_reply() {
                    Some(reply) => Ok(reply),
                    None => self.call(TaskVerb::Result).await,
                };
                match reply {
                    Ok(reply) => self.came(task, reply),
                    // That we do not know what it came to is no end of the task.
                    Err(failed) => return self.told.failure(&failed),
                }
            }
            Status::InputRequired => {
                let requests = self.attend().await;
                let came = match &requests {
                    Some(requests) => Came::Questions(requests),
                    None => Came::Nothing,
                };
                let task = tasks::to_modern(task, came);
                // Nothing is asked that the caller could answer yet.
                match requests {
                    Some(_) => task,
                    None => in_status(&task, Status::Working),
                }
            }
            Status::Working | Status::Cancelled => tasks::to_modern(task, Came::Nothing),
        };
        self.told.result(&self.named(&whole))
    }

    /// Writes a task that is over with what it came to. A tool that says that it failed has
    /// answered, which in the other era may count as a failure of the task.
    fn came(&self, task: &[u8], reply: Reply) -> Vec<u8> {
        let inside = reply.answer.get(reply.body_at).unwrap_or_default();
        match reply.body {
            Body::Result => {
                let info = info_of(&self.told.edge, &self.told.principal, &self.told.scope);
                let known = Completing {
                    server_info: Some(&info),
                    hint: None,
                };
                let result = to_modern(&unrelated(inside), method::TOOLS_CALL, &known);
                in_status(
                    &tasks::to_modern(task, Came::Result(&result)),
                    Status::Completed,
                )
            }
            Body::Error => {
                let error = era_error::to_modern(inside, None);
                in_status(&tasks::to_modern(task, Came::Error(&error)), Status::Failed)
            }
        }
    }

    async fn update(&self) -> Written {
        let answers = object::field(&self.told.params, "inputResponses");
        let answers = answers.map(|at| at.of(&self.told.params));
        let Some(answers) = answers.filter(|answers| answers.starts_with(b"{")) else {
            return Written::of_invalid(&self.told, "tasks/update needs an object inputResponses");
        };
        if self.answered(answers) {
            return self.told.result(ACKNOWLEDGED);
        }
        if let Err(refused) = self.checked().await {
            return refused;
        }
        match self.call(TaskVerb::Update).await {
            Ok(reply) if reply.era == Era::Modern => self.passed(&reply),
            // Servers of the other era know no such request; but they know the task, or not.
            Ok(reply) if is_no_method(&reply) => self.acknowledged().await,
            Ok(reply) if reply.body == Body::Error => self.told.refused(&self.end, &reply),
            Ok(_) => self.told.result(ACKNOWLEDGED),
            Err(failed) => self.told.failure(&failed),
        }
    }

    async fn cancel(&self) -> Written {
        if let Err(refused) = self.checked().await {
            return refused;
        }
        match self.call(TaskVerb::Cancel).await {
            Ok(reply) if reply.era == Era::Modern => self.passed(&reply),
            Ok(reply) if reply.body == Body::Result => self.told.result(ACKNOWLEDGED),
            // One that is over already cannot be ended, which is nothing to complain of.
            Ok(_) => self.acknowledged().await,
            Err(failed) => self.told.failure(&failed),
        }
    }

    /// Passes on what a server of this era answered.
    fn passed(&self, reply: &Reply) -> Written {
        match reply.body {
            Body::Error => self.told.refused(&self.end, reply),
            Body::Result => {
                let inside = reply.answer.slice(reply.body_at.clone());
                self.told.result(&self.named(&inside))
            }
        }
    }

    /// Acknowledges where the server knows the task.
    async fn acknowledged(&self) -> Written {
        match self.found().await {
            Ok(_) => self.told.result(ACKNOWLEDGED),
            Err(refused) => refused,
        }
    }
}

/// Whether a server says that it knows no such request.
fn is_no_method(reply: &Reply) -> bool {
    let inside = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    reply.body == Body::Error && era_error::code_of(inside) == Some(code::METHOD_NOT_FOUND)
}

/// Writes a task in another status.
fn in_status(task: &[u8], status: Status) -> Vec<u8> {
    let Some(at) = object::field(task, "status") else {
        return task.to_vec();
    };
    replace(task, at, format!("\"{}\"", status.as_str()).as_bytes())
}
