//! Calls and specs as tests want them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Call, Principal, Reply, Role, Scope, Subject};
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::sync::lock;
use bowline_host::Host;
use bowline_host::ports::Audience;
use bowline_host::spec::ServerSpec;
use bytes::Bytes;
use tokio::sync::watch;

use crate::json::literal;

/// The id of every call made here.
pub const CALL_ID: &str = "\"call-7\"";

/// How long a test waits for a server, on the clock of the test.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Returns a spec with every default.
#[must_use]
pub fn spec(server: &str) -> ServerSpec {
    ServerSpec::new(server, "scripted")
}

/// Returns the owner's call of a tool by its visible name. `arguments` is a JSON object.
#[must_use]
pub fn call(tool: &str, arguments: &str) -> Call {
    let name = literal(tool);
    let start = "{\"name\":";
    Call {
        principal: Arc::new(Principal::new("owner", Role::Owner)),
        scope: Scope::All,
        subject: Subject::Tool(tool.into()),
        params: format!("{start}{name},\"arguments\":{arguments}}}").into(),
        name_at: start.len()..start.len() + name.len(),
        makes_task: false,
        progress_at: None,
        id: Bytes::from_static(CALL_ID.as_bytes()),
        deadline: None,
        caller: None,
        trace: None,
        run: None,
        key: None,
        stateless: None,
    }
}

/// Returns the owner's call of a tool of one server by the server's own name of it.
#[must_use]
pub fn call_of(server: &str, tool: &str, arguments: &str) -> Call {
    Call {
        scope: Scope::Server(server.into()),
        ..call(tool, arguments)
    }
}

/// Returns the result or error object of a reply.
#[must_use]
pub fn body(reply: &Reply) -> String {
    let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    String::from_utf8_lossy(body).into_owned()
}

/// Waits until a server is in the state of this name; `false` when that never comes.
pub async fn reaches(host: &Host, server: &str, state: &str) -> bool {
    let Ok(server) = host.server(server) else {
        return false;
    };
    let mut states = server.state();
    let reached = states.wait_for(|current| current.as_str() == state);
    matches!(tokio::time::timeout(WAIT_MAX, reached).await, Ok(Ok(_)))
}

/// A caller's end that can be asked anything, and keeps what it is told.
#[derive(Debug, Default)]
pub struct Hearer {
    session: u64,
    told: Mutex<Vec<Bytes>>,
}

impl Hearer {
    /// Returns the end of a call of this session.
    #[must_use]
    pub fn of(session: u64) -> Arc<Self> {
        Arc::new(Self {
            session,
            told: Mutex::default(),
        })
    }

    /// Returns what it was told.
    #[must_use]
    pub fn told(&self) -> Vec<Bytes> {
        lock(&self.told).clone()
    }
}

impl CallerEnd for Hearer {
    fn session(&self) -> SessionKey {
        SessionKey(self.session)
    }

    fn abilities(&self) -> Abilities {
        let all = Ability::ALL.into_iter();
        all.fold(Abilities::default(), Abilities::with)
    }

    fn push(&self, notification: Bytes) {
        lock(&self.told).push(notification);
    }

    fn ask(&self, _: Question) -> Option<QuestionId> {
        None
    }

    fn withdraw(&self, _: QuestionId) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Self::of(self.session)
    }
}

/// An audience that keeps what each session was told.
#[derive(Debug, Default)]
pub struct Ears(watch::Sender<Vec<(SessionKey, Bytes)>>);

impl Ears {
    /// Waits until `count` notifications were told in all and returns them.
    pub async fn heard(&self, count: usize) -> Vec<(u64, String)> {
        let mut told = self.0.subscribe();
        let _ = tokio::time::timeout(WAIT_MAX, told.wait_for(|told| told.len() >= count)).await;
        let told = self.0.borrow();
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        told.iter()
            .map(|(session, said)| (session.0, text(said)))
            .collect()
    }
}

impl Audience for Ears {
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool {
        self.0
            .send_modify(|told| told.push((session, notification)));
        true
    }
}

/// Returns the owner's request for `subject` on `/mcp`; `key` is the member that names it.
#[must_use]
pub fn ask(subject: Subject, key: &str) -> Call {
    let name = literal(subject.name());
    let start = format!("{{\"{key}\":");
    Call {
        subject,
        params: format!("{start}{name}}}").into(),
        name_at: start.len()..start.len() + name.len(),
        ..call("", "{}")
    }
}
