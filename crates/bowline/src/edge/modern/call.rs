//! Calls: from the caller's bytes to the host, and back as this era has them.

pub(super) mod asking;
mod brought;
mod drive;
pub(super) mod written;

use std::sync::{Arc, Mutex};

use bowline_core::call::{Call, Origin, Principal, Reply, Scope, Subject};
use bowline_core::caller::{Abilities, CallerEnd};
use bowline_core::era::{Era, Stateless};
use bowline_core::error::{CallError, Execution};
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_wire::Message;
use bowline_wire::era::meta::takes_tasks;
use bowline_wire::mcp::code;
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::oneshot;

use super::client::{Client, Clients, Hearing};
use super::end::{End, Outcome, Wants};
use super::parked::Parked;
use super::read::Asked;
use super::state;
use super::tasks::{self, Attended};
use crate::edge::body::{self, Answer};
use crate::edge::mcp::call::{Ask, Asked as Named, read_params};
use crate::edge::mcp::{Caller, accepts, error, outbox};
use crate::edge::{Edge, key, run, trace};
use brought::Brought;
use drive::Running;

/// What all calls without a session share.
#[derive(Debug)]
pub(in crate::edge) struct Calls {
    /// Who asked lately.
    pub(in crate::edge) clients: Clients,
    /// The calls that wait for their callers.
    parked: Mutex<Parked<Arc<End>>>,
    /// What is attended to on behalf of callers that ask how their tasks stand.
    pub(super) attended: Attended,
    /// Tells this process from those before it.
    pub(super) boot: u64,
}

impl Default for Calls {
    fn default() -> Self {
        let mut boot = [0; 8];
        // Without randomness no state is sealed, and so none is taken for another process's.
        let _ = getrandom::fill(&mut boot);
        Self {
            clients: Clients::default(),
            parked: Mutex::default(),
            attended: Attended::default(),
            boot: u64::from_ne_bytes(boot),
        }
    }
}

impl Calls {
    /// Takes calls back whose callers took too long, and lets clients go that were quiet for long.
    pub(in crate::edge) fn sweep(&self, edge: &Edge) {
        let now = edge.host.clock().now();
        let late = lock(&self.parked).expire(now);
        for end in late {
            end.cancel();
        }
        self.attended.sweep(now);
        for client in self.clients.sweep(now) {
            edge.host.session_ended(client);
        }
    }

    /// Ends what was begun with a credential that counts no more.
    pub(in crate::edge) fn dismiss(&self, edge: &Edge, credential: &str) {
        let waiting = lock(&self.parked).take_of(|end| end.client().is_of(credential));
        for end in waiting {
            end.cancel();
        }
        self.attended.dismiss(credential);
        for client in self.clients.dismiss(credential) {
            edge.host.session_ended(client);
        }
    }
}

/// What is needed to tell the caller of one request what came of it, after the request is gone.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) edge: Arc<Edge>,
    pub(super) principal: Arc<Principal>,
    pub(super) scope: Scope,
    pub(super) ask: Ask,
    /// What was asked for.
    pub(super) subject: Subject,
    pub(super) params: Bytes,
    /// The id of the request.
    pub(super) id: Bytes,
    /// Whether its caller takes streams.
    streams: bool,
    /// Whether its caller takes tasks for answers.
    pub(super) tasks: bool,
    /// Whether it asks a server of the other era for a task.
    makes_task: bool,
}

impl Told {
    /// Takes what is needed from a request.
    pub(super) fn of(asked: &Asked<'_>, ask: Ask, subject: Subject, params: Bytes) -> Self {
        let caller = asked.caller;
        Self {
            edge: Arc::clone(caller.edge),
            principal: Arc::clone(caller.principal),
            scope: caller.scope.clone(),
            ask,
            subject,
            params,
            id: Bytes::copy_from_slice(asked.id()),
            streams: accepts(caller.parts, "text/event-stream"),
            tasks: takes_tasks(asked.capabilities.of(asked.params())),
            makes_task: false,
        }
    }

    /// Tells the request from others of the same caller.
    fn digest(&self) -> [u8; 32] {
        let arguments = bowline_wire::object::field(&self.params, "arguments");
        let arguments = arguments.map(|at| at.of(&self.params));
        state::digest(self.subject.method(), self.subject.name(), arguments)
    }

    fn bound<'a>(&'a self, request: &'a [u8; 32]) -> state::Bound<'a> {
        state::Bound {
            principal: &self.principal,
            scope: &self.scope,
            request,
        }
    }
}

/// Answers a request that a server answers.
pub(super) async fn answer(asked: Asked<'_>, ask: Ask) -> Answer {
    let params = asked.message.params_span().map_or_else(Bytes::new, |at| {
        asked.message.bytes().slice(at.start..at.end)
    });
    let Some(named) = read_params(&params, ask) else {
        let refused = error(Some(asked.id()), code::INVALID_PARAMS, ask.missing());
        return body::json(StatusCode::OK, refused);
    };
    let mut told = Told::of(&asked, ask, named.subject.clone(), params);
    let brought = match brought::read(&told) {
        Ok(brought) => brought,
        Err(failed) => return told.failed(&failed),
    };
    match brought {
        Brought::Nothing => begin(asked, told, named, false).await,
        Brought::Answers => begin(asked, told, named, true).await,
        // What the server wrote takes the place of what we made of it.
        Brought::Carried(params) => match read_params(&params, ask) {
            Some(named) => {
                told.params = params;
                begin(asked, told, named, true).await
            }
            None => told.invalid(ask.missing()),
        },
        Brought::Parked(ticket) => Box::pin(drive::go_on(&asked, told, ticket)).await,
    }
}

/// Gives a request to the host, and its answer to the caller.
async fn begin(asked: Asked<'_>, mut told: Told, mut named: Named, retried: bool) -> Answer {
    // Only a server that is told by the tool's definition makes tasks of the other era.
    if let Some(params) = tasks::wanted(&told, named.makes_task) {
        told.params = params;
        let Some(again) = read_params(&told.params, told.ask) else {
            return told.invalid(told.ask.missing());
        };
        named = again;
        told.makes_task = named.makes_task;
    }
    let caller = asked.caller;
    let edge = caller.edge;
    let meta = named.meta.map(|at| at.of(&told.params));
    let Ok(run) = run::read(&caller.parts.headers, meta) else {
        return told.invalid(run::MALFORMED);
    };
    let run = run.map(|run| edge.run_of(caller.principal, &run));
    let Ok(key) = key::read(meta) else {
        return told.invalid(key::MALFORMED);
    };
    let said = trace::read(&caller.parts.headers, meta);
    let client = client_of(&asked, &told);
    let hearing = match asked.level {
        Some(level) => Some(Box::pin(levelled(caller, &client, level)).await),
        None => None,
    };
    let mut wants = wants(&asked, &told.params, &named);
    // What cannot be answered with a question is not asked one.
    if !told.can_be_asked() {
        wants.abilities = Abilities::default();
    }
    let (end, round, cancelled) = End::new(client, wants);
    let call = Call {
        principal: Arc::clone(&told.principal),
        scope: told.scope.clone(),
        subject: named.subject,
        params: told.params.clone(),
        name_at: named.name_at,
        makes_task: named.makes_task,
        progress_at: named.progress_at,
        id: told.id.clone(),
        deadline: None,
        caller: Some(Arc::clone(&end) as Arc<dyn CallerEnd>),
        trace: edge.traces.tracer.place(said),
        run,
        key,
        stateless: Some(Box::new(Stateless {
            claims: asked.claims,
            retried,
            task: None,
        })),
    };
    let carried = carry(Arc::clone(edge), call, cancelled);
    let running: Running = Box::pin(async move {
        let _hearing = hearing;
        carried.await
    });
    drive::first(told, end, round, running).await
}

pub(super) fn client_of(asked: &Asked<'_>, told: &Told) -> Arc<Client> {
    let info = asked.client_info.map(|at| at.of(asked.params()));
    let edge = &told.edge;
    let (client, gone) = edge.calls.clients.enter(
        &edge.sessions,
        (&told.principal, &told.scope),
        (asked.abilities, info.unwrap_or_default()),
        edge.host.clock().now(),
    );
    for client in gone {
        edge.host.session_ended(client);
    }
    client
}

/// Returns what a request says about being told and asked.
pub(super) fn wants(asked: &Asked<'_>, params: &Bytes, named: &Named) -> Wants {
    Wants {
        abilities: asked.abilities,
        level: asked.level,
        token: named.progress_at.clone().map(|at| params.slice(at)),
    }
}

/// Has servers say what the request wants to hear, where they were told otherwise before.
async fn levelled(caller: Caller<'_>, client: &Arc<Client>, level: Level) -> Hearing {
    let Caller {
        edge,
        principal,
        scope,
        ..
    } = caller;
    let (hearing, told) = client.hears(level);
    if let Some(level) = told {
        // A server that cannot be told is one that says less.
        let _ = edge
            .host
            .set_level(principal, scope, client.key, level)
            .await;
    }
    hearing
}

/// Runs a call to its one end.
pub(super) async fn carry(
    edge: Arc<Edge>,
    call: Call,
    mut cancelled: oneshot::Receiver<()>,
) -> Outcome {
    if let Subject::Resource(uri) = &call.subject
        && outbox::is_ours(uri)
    {
        let who = (&*call.principal, &call.scope);
        let read = outbox::read(&edge, who, uri, &call.id);
        return own(Box::pin(read).await);
    }
    tokio::select! {
        biased;
        outcome = edge.host.call(&call) => outcome,
        Ok(()) = &mut cancelled => Err(CallError::Cancelled {
            execution: Execution::Unknown,
        }),
    }
}

/// Returns what the gateway itself answers as if a server had.
fn own(answer: Bytes) -> Outcome {
    use bowline_core::call::Body;
    let read = Message::parse_peer(answer.clone()).ok();
    let place = read.and_then(|message| match message.result_span() {
        Some(at) => Some((Body::Result, at)),
        None => message.error_span().map(|at| (Body::Error, at)),
    });
    let (body, at) = place.ok_or(CallError::ShuttingDown)?;
    Ok(Reply {
        answer,
        body_at: at.start..at.end,
        body,
        origin: Origin::Live,
        era: Era::Legacy,
        server: None,
    })
}
