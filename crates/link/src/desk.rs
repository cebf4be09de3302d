//! Brings every message of a server to whom it concerns, whatever carried it.

mod events;
mod marks;
mod questions;
mod relayed;
mod secrets;
mod text;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bowline_core::call::Body;
use bowline_core::caller::{Ability, CallerEnd, Question};
use bowline_wire::jsonrpc::{write_error, write_result};
use bowline_wire::mcp::{code, meta, method};
use bowline_wire::splice::replace;
use bowline_wire::{Kind, Message, object};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use crate::link::{Answer, Exit, LinkError, LinkEvent};
use crate::modern::params;

pub(crate) use events::{Change, Events};
pub(crate) use marks::marked;
pub use questions::ability;
pub use relayed::{Unfit, relayed};
pub(crate) use secrets::wanted as secret_wanted;
pub(crate) use text::take;
pub use waiters::ASKED_MAX;
use waiters::Whose;
pub(crate) use waiters::{Receiver, Waiter, Waiters, now};

/// Ids of requests of the server that we repeat in answers.
const PEER_ID_BYTES_MAX: usize = 1024;

/// Notifications that are passed on outside calls.
const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Of the method of a refused request, as many characters are repeated.
const METHOD_CHARS_MAX: usize = 64;

/// The code of an error that sends the user to an address first.
const URL_ELICITATION_REQUIRED: &[u8] = b"-32042";

/// What a link gives its desk.
pub(crate) trait Desk: Send + Sync + 'static {
    /// Looks at who waits, under the link's own lock. Must not be called from within itself.
    fn with<R>(&self, look: impl FnOnce(&mut Waiters) -> R) -> R;

    /// Sends an answer to a request of the server: one whole message without a line end.
    fn reply(self: &Arc<Self>, answer: Vec<u8>);

    /// Returns what is counted.
    fn counts(&self) -> &Counts;

    /// Returns the name of the server.
    fn server(&self) -> &str;

    /// Whether the server may send requests of its own.
    fn takes_requests(&self) -> bool {
        true
    }
}

/// What was seen and dropped.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Lines that are no messages.
    pub(crate) noise: AtomicU64,
    /// Answers and progress that nobody waits for.
    pub(crate) late: AtomicU64,
    /// Events and replies for which there was no room.
    pub(crate) dropped: AtomicU64,
}

impl Counts {
    /// Returns how much of what came was of no use.
    pub(crate) fn wasted(&self) -> u64 {
        let all = [&self.noise, &self.late, &self.dropped];
        all.map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A waiter cannot vanish without being told, so nobody reads this; it says what is true.
pub(crate) const GONE: LinkError = LinkError::Lost(Exit::Gone);

/// Waits for an answer. `None` when the deadline came first; time that passes while the caller is
/// asked something is not the server's, and does not count.
pub(crate) async fn wait<D: Desk>(
    desk: &D,
    id: u64,
    answer: &mut Receiver,
    deadline: Instant,
) -> Option<Result<Answer, LinkError>> {
    let mut until = deadline;
    loop {
        if let Ok(answer) = timeout_at(until, &mut *answer).await {
            return Some(answer.unwrap_or(Err(GONE)));
        }
        until = desk.with(|waiters| waiters.patience(id, deadline, until))?;
    }
}

/// Returns the number that an id of ours stands for. Some servers give numbers back as strings.
pub(crate) fn own_id(raw: &[u8]) -> Option<u64> {
    let digits = match raw {
        [b'"', inner @ .., b'"'] => inner,
        number => number,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Takes one message of the server. `via` is the request on whose own stream it came, where the
/// transport tells.
pub(crate) fn receive<D: Desk>(
    desk: &Arc<D>,
    events: &Events,
    message: &Message,
    via: Option<u64>,
) {
    let incoming = Incoming {
        desk,
        events,
        message,
        via,
    };
    match message.kind() {
        Kind::Answer => incoming.answer(),
        Kind::Notification => incoming.notification(),
        Kind::Request => incoming.request(),
    }
}

/// Ends the wait for `id` without an answer of the server.
pub(crate) fn fail<D: Desk>(desk: &D, id: u64, error: LinkError) {
    match desk.with(|waiters| waiters.pending.take(id)) {
        Some((waiter, _)) => {
            let _ = waiter.answer.send(Err(error));
        }
        None => Counts::add(&desk.counts().late),
    }
}

/// One message on its way from the link to whom it concerns.
struct Incoming<'a, D> {
    desk: &'a Arc<D>,
    events: &'a Events,
    message: &'a Message,
    via: Option<u64>,
}

impl<D: Desk> Incoming<'_, D> {
    fn answer(&self) {
        let message = self.message;
        let (body, body_at) = match (message.result_span(), message.error_span()) {
            (Some(at), _) => (Body::Result, at),
            (None, Some(at)) => (Body::Error, at),
            (None, None) => return,
        };
        let id = message.id().and_then(own_id);
        let (Some(id), Some(id_at)) = (id, message.id_span()) else {
            return Counts::add(&self.desk.counts().late);
        };
        let taken = self.desk.with(|waiters| waiters.pending.take(id));
        let Some((waiter, _)) = taken else {
            return Counts::add(&self.desk.counts().late);
        };
        if body == Body::Error {
            self.note_addresses(body_at.of(message.bytes()), waiter.caller.as_ref());
        }
        let bytes = replace(message.bytes(), id_at, &waiter.reply_id).into();
        let shift = |at: usize| {
            if at < id_at.end {
                at
            } else {
                at - id_at.len() + waiter.reply_id.len()
            }
        };
        let body_at = shift(body_at.start)..shift(body_at.end);
        // Nobody there any more is the same as a late answer.
        let _ = waiter.answer.send(Ok(Answer {
            bytes,
            body,
            body_at,
            era: waiter.era,
        }));
    }

    /// An error may send the user to an address; what is said of that later is for this session.
    fn note_addresses(&self, error: &[u8], caller: Option<&Arc<dyn CallerEnd>>) {
        let (Some(caller), Some(code)) = (caller, object::field(error, "code")) else {
            return;
        };
        if code.of(error) != URL_ELICITATION_REQUIRED {
            return;
        }
        let list = object::field(error, "data").and_then(|data| {
            let data = data.of(error);
            object::field(data, "elicitations").map(|at| at.of(data))
        });
        let session = caller.session();
        self.desk.with(|waiters| {
            for item in list
                .into_iter()
                .flat_map(|list| object::items(list).map(move |item| item.of(list)))
            {
                if let Some(id) = object::text(item, "elicitationId") {
                    waiters.questions.remember(&id, session);
                }
            }
        });
    }

    fn notification(&self) {
        match self.message.method().unwrap_or_default() {
            method::PROGRESS => self.progress(),
            method::TOOLS_LIST_CHANGED => self.events.changed(Change::Tools),
            method::PROMPTS_LIST_CHANGED => self.events.changed(Change::Prompts),
            method::RESOURCES_LIST_CHANGED => self.events.changed(Change::Resources),
            method::CANCELLED => self.withdrawn(),
            method::RESOURCES_UPDATED => self.told_by_key("uri", |uri, notification| {
                LinkEvent::ResourceUpdated { uri, notification }
            }),
            method::TASKS_STATUS | method::TASKS_NOTIFICATION => {
                self.told_by_key("taskId", |task, notification| LinkEvent::TaskStatus {
                    task,
                    notification,
                })
            }
            method::ELICITATION_COMPLETE => self.completed(),
            method::SUBSCRIPTIONS_ACKNOWLEDGED => self.agreed(),
            method::MESSAGE => self.to_caller_or(LinkEvent::Log),
            _ => self.to_caller_or(LinkEvent::Other),
        }
    }

    fn progress(&self) {
        let message = self.message;
        let token = message.params_span().and_then(|params| {
            let token = object::field(params.of(message.bytes()), "progressToken")?;
            Some(token.shift(params.start))
        });
        let progress = token.and_then(|token| {
            let id = own_id(token.of(message.bytes()))?;
            let (caller, given) = self.desk.with(|waiters| waiters.progress(id))?;
            Some((token, caller, given))
        });
        match progress {
            Some((token, caller, given)) => {
                caller.push(replace(message.bytes(), token, &given).into())
            }
            None => Counts::add(&self.desk.counts().late),
        }
    }

    /// The server takes back a question of its own.
    fn withdrawn(&self) {
        let params = self.message.params().unwrap_or_default();
        let Some(id) = object::field(params, "requestId") else {
            return;
        };
        let asked = self.desk.with(|waiters| waiters.close(id.of(params)));
        match asked {
            Some((caller, Some(question))) => caller.withdraw(question),
            Some((_, None)) => {}
            // A server of the modern era so ends a stream of changes, and nothing else.
            None => {
                let listening = |id: &u64| self.desk.with(|waiters| waiters.listens(*id));
                if let Some(id) = own_id(id.of(params)).filter(listening) {
                    fail(self.desk.as_ref(), id, LinkError::Lost(Exit::Closed));
                }
            }
        }
    }

    /// The server says what a stream of changes will carry.
    fn agreed(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::field(params, "_meta").and_then(|meta| {
            let meta = meta.of(params);
            own_id(object::field(meta, meta::SUBSCRIPTION_ID)?.of(meta))
        });
        let agreed = id.and_then(|id| self.desk.with(|waiters| waiters.agreed(id)));
        match agreed {
            Some(agreed) => {
                let what = object::field(params, "notifications").map(|at| at.of(params));
                let _ = agreed.send(Bytes::copy_from_slice(what.unwrap_or(b"{}")));
            }
            None => Counts::add(&self.desk.counts().late),
        }
    }

    /// Passes on what is said of one thing, to be brought to those who asked about it.
    fn told_by_key(&self, key: &str, event: impl FnOnce(Arc<str>, Bytes) -> LinkEvent) {
        let params = self.message.params().unwrap_or_default();
        match object::text(params, key) {
            Some(name) => self.pass(|notification| event(name.as_ref().into(), notification)),
            None => Counts::add(&self.desk.counts().dropped),
        }
    }

    /// What the user was sent to is done: whoever was sent there is told.
    fn completed(&self) {
        let params = self.message.params().unwrap_or_default();
        let id = object::text(params, "elicitationId");
        let found = self.desk.with(|waiters| {
            let session = waiters.questions.session_of(id.as_deref()?)?;
            Some((session, waiters.newest_of(session)))
        });
        match found {
            Some((_, Some(caller))) => caller.push(Bytes::copy_from_slice(self.message.bytes())),
            Some((session, None)) => self.pass(|notification| LinkEvent::Told {
                session,
                notification,
            }),
            None => Counts::add(&self.desk.counts().dropped),
        }
    }

    /// Hands a notification to the one session it can belong to, else to who listens outside
    /// calls.
    fn to_caller_or(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        match self.desk.with(|waiters| waiters.whose(self.via)) {
            Whose::Of { caller, .. } => caller.push(Bytes::copy_from_slice(self.message.bytes())),
            Whose::Several | Whose::Nobody => self.pass(event),
        }
    }

    fn pass(&self, event: impl FnOnce(Bytes) -> LinkEvent) {
        let bytes = self.message.bytes();
        // Copied, so that the event does not hold the whole read buffer.
        let passed = bytes.len() <= EVENT_BYTES_MAX && self.events.pass(|| event(untagged(bytes)));
        if !passed {
            Counts::add(&self.desk.counts().dropped);
        }
    }

    /// A request of the server: relayed when it is certain whose it is, never guessed.
    fn request(&self) {
        if !self.desk.takes_requests() {
            return Counts::add(&self.desk.counts().dropped);
        }
        let Some(id) = self.message.id().filter(|id| id.len() <= PEER_ID_BYTES_MAX) else {
            return Counts::add(&self.desk.counts().dropped);
        };
        let asked = self.message.method().unwrap_or_default();
        if asked == method::PING {
            let mut pong = Vec::new();
            write_result(&mut pong, id, b"{}");
            return self.desk.reply(pong);
        }
        let Some(ability) = ability(self.message) else {
            return self.desk.reply(undeclared(id, asked));
        };
        if ability == Ability::ElicitationForm
            && let Some(property) = secrets::wanted(self.message.params().unwrap_or_default())
        {
            return self.desk.reply(self.not_a_secret(id, &property));
        }
        match self.desk.with(|waiters| waiters.whose(self.via)) {
            Whose::Of { caller, call } if caller.abilities().has(ability) => {
                // The next question would meet this call, which waits, and be nobody's.
                if self.via.is_none() && caller.answers_later() {
                    self.events.changed(Change::Ambiguous);
                }
                self.ask(id, asked, ability, &caller, call);
            }
            Whose::Of { caller, .. } => {
                caller.lacks(ability);
                self.desk.reply(undeclared(id, asked));
            }
            Whose::Several => {
                self.events.changed(Change::Ambiguous);
                let message =
                    "calls of several clients are in flight; nobody can say whose this is";
                self.desk.reply(refusal(id, code::INTERNAL, message));
            }
            Whose::Nobody if ability == Ability::Roots => {
                let mut none = Vec::new();
                write_result(&mut none, id, br#"{"roots":[]}"#);
                self.desk.reply(none);
            }
            Whose::Nobody => {
                let message = "no call is in flight, so there is nobody to ask";
                self.desk.reply(refusal(id, code::INTERNAL, message));
            }
        }
    }

    fn not_a_secret(&self, id: &[u8], property: &str) -> Vec<u8> {
        let property: String = property.chars().take(METHOD_CHARS_MAX).collect();
        let server = self.desk.server();
        tracing::warn!(server, property, "a form that asks for a secret is refused");
        let message =
            format!("a form must not ask for secrets (`{property}`); send the user to an address");
        refusal(id, code::INVALID_PARAMS, &message)
    }

    fn ask(
        &self,
        id: &[u8],
        asked: &str,
        ability: Ability,
        caller: &Arc<dyn CallerEnd>,
        call: Option<u64>,
    ) {
        let id = Bytes::copy_from_slice(id);
        let address = (ability == Ability::ElicitationUrl)
            .then(|| object::text(self.message.params()?, "elicitationId"))
            .flatten();
        let opened = self.desk.with(|waiters| {
            if let Some(address) = address {
                waiters.questions.remember(&address, caller.session());
            }
            waiters.open(&id, caller, call)
        });
        if !opened {
            let message = "too many questions are open, or one with this id is";
            return self.desk.reply(refusal(&id, code::INTERNAL, message));
        }
        let (request, id_at) = marked(self.message, self.desk.server());
        let desk = Arc::downgrade(self.desk);
        let (key, asked) = (id.clone(), asked.to_owned());
        let reply = move |answer: Option<Bytes>| {
            let Some(desk) = desk.upgrade() else {
                return;
            };
            // One that the server took back wants no answer any more.
            if desk.with(|waiters| waiters.close(&key)).is_some() {
                desk.reply(answer.map_or_else(|| unanswered(&key, &asked), Vec::from));
            }
        };
        let question = Question::new(request, id_at, ability, reply);
        if let Some(number) = caller.ask(question) {
            self.desk
                .with(|waiters| waiters.questions.name(&id, number));
        }
    }
}

/// Returns a notification without the id of the stream it came on, which is ours alone.
fn untagged(notification: &[u8]) -> Bytes {
    let tagged = object::field(notification, "params").and_then(|params| {
        let meta = object::field(params.of(notification), "_meta")?.shift(params.start);
        object::field(meta.of(notification), meta::SUBSCRIPTION_ID)?;
        Some(meta)
    });
    match tagged {
        Some(meta) => params::taken_out(notification, meta, meta::SUBSCRIPTION_ID),
        None => Bytes::copy_from_slice(notification),
    }
}

fn undeclared(id: &[u8], asked: &str) -> Vec<u8> {
    let asked: String = asked.chars().take(METHOD_CHARS_MAX).collect();
    let message = format!("this client has not declared the capability for `{asked}`");
    refusal(id, code::METHOD_NOT_FOUND, &message)
}

fn unanswered(id: &[u8], asked: &str) -> Vec<u8> {
    let asked: String = asked.chars().take(METHOD_CHARS_MAX).collect();
    let message = format!("the client gave no answer to `{asked}`");
    refusal(id, code::INTERNAL, &message)
}

fn refusal(id: &[u8], code: i64, message: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_error(&mut out, Some(id), code, message, None);
    out
}
