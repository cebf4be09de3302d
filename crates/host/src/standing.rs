//! Keeps each server told of what sessions want of it between calls: news of resources, and a log
//! level. What is wanted is compared with what the link was told, so that a server that was
//! started anew hears it again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{Body, Scope};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::Request;
use bowline_wire::mcp::method;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::callpath::{ResponseWait, explain};
use crate::catalog::introduction::declares;
use crate::memory::Memory;
use crate::ports::Clock;
use crate::supervisor::{Ready, Supervisor};
use crate::tasks::Tasks;

/// How long a server may take to answer one of these requests.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait before a server that did not say whether it takes a resource is told again.
const AGAIN: Backoff = Backoff {
    base: Duration::from_secs(5),
    cap: Duration::from_secs(5 * 60),
};

/// What is said of a resource of which a server of the modern era will not tell.
const NOT_TOLD: &[u8] = br#"{"code":-32602,"message":"the server does not tell of this resource"}"#;

/// The keepers of all servers of which anything is wanted.
#[derive(Debug)]
pub(crate) struct Standing {
    memory: Arc<Memory>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
    keepers: Mutex<HashMap<Arc<str>, Arc<Keeper>>>,
    closing: watch::Sender<bool>,
}

/// One server's keeper: a task that lives while anything is wanted of the server.
#[derive(Debug)]
struct Keeper {
    /// Whom it tells. A server whose entry in the configuration changed is another one.
    server: Supervisor,
    told: watch::Sender<Told>,
    poke: Notify,
}

impl Keeper {
    /// Returns a number that differs from server to server and from time to time.
    fn jitter(&self, now: Now) -> u64 {
        let mut mixer = DefaultHasher::new();
        (&self.server.spec().name, now).hash(&mut mixer);
        mixer.finish()
    }

    /// Starts anew where the link is another, or the server forgot what it was told over it.
    fn forget_unless(&self, generation: u64, renewals: u64) {
        self.told.send_if_modified(|told| {
            let anew = (told.generation, told.renewals) != (generation, renewals);
            if anew {
                *told = Told {
                    generation,
                    renewals,
                    ..Told::default()
                };
            }
            anew
        });
    }
}

/// What the link of one generation was told.
#[derive(Debug, Default)]
struct Told {
    generation: u64,
    /// How often the server had forgotten us when it was told.
    renewals: u64,
    resources: HashMap<Arc<str>, Result<(), CallError>>,
    level: Option<Level>,
    /// How often in a row it did not say whether it takes some of them.
    failures: u32,
    /// When those are said again.
    again: Option<Now>,
}

impl Told {
    /// Notes when to say again what the server neither took nor refused; `jitter` is any number.
    fn plan(&mut self, now: Now, jitter: u64) {
        match self.resources.values().any(is_open) {
            true if self.again.is_some() => {}
            true => {
                self.failures = self.failures.saturating_add(1);
                self.again = Some(now.plus(AGAIN.wait(self.failures, jitter)));
            }
            false => (self.failures, self.again) = (0, None),
        }
    }
}

/// Whether a server neither took a resource nor refused it.
const fn is_open(outcome: &Result<(), CallError>) -> bool {
    !matches!(outcome, Ok(()) | Err(CallError::Refused { .. }))
}

/// What a server is to be told next.
#[derive(Debug)]
enum Step {
    Subscribe(Arc<str>),
    Unsubscribe(Arc<str>),
    /// All that is wanted of a server of the modern era, in place of what it was told.
    Listen(Vec<Arc<str>>),
    Level(Level),
}

impl Standing {
    pub(crate) fn new(memory: Arc<Memory>, clock: Arc<dyn Clock>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            memory,
            clock,
            tasks,
            keepers: Mutex::default(),
            closing: watch::Sender::new(false),
        })
    }

    /// Lets every keeper go, because the host goes down.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Has the keeper of `server` look at what is wanted now.
    pub(crate) fn poke(self: &Arc<Self>, server: &Supervisor) {
        self.keeper(server).poke.notify_one();
    }

    /// Waits until the server has taken a subscription that was noted before, or says why not.
    pub(crate) async fn subscribed(
        self: &Arc<Self>,
        server: &Supervisor,
        uri: &Arc<str>,
        deadline: Now,
    ) -> Result<(), CallError> {
        let keeper = self.keeper(server);
        // A refusal of before says nothing of today.
        keeper.told.send_if_modified(|told| {
            let refused = told.resources.get(uri).is_some_and(Result::is_err);
            refused.then(|| told.resources.remove(uri)).is_some()
        });
        keeper.poke.notify_one();
        let outcome = self.wait(&keeper, deadline, |told| told.resources.get(uri).cloned());
        outcome.await.unwrap_or_else(|| {
            Err(CallError::Timeout {
                server: Arc::clone(&server.spec().name),
                after_ms: bowline_core::time::millis(server.spec().call_timeout),
                execution: bowline_core::error::Execution::Unknown,
                limit: bowline_core::call::TimeLimit::Server,
            })
        })
    }

    /// Waits until a server that serves was told that nobody wants news of a resource; not long.
    pub(crate) async fn unsubscribed(
        self: &Arc<Self>,
        server: &Supervisor,
        uri: &Arc<str>,
        deadline: Now,
    ) {
        let keeper = self.keeper(server);
        keeper.poke.notify_one();
        let name = &server.spec().name;
        let told = self.wait(&keeper, deadline, |told| {
            let wanted = lock(&self.memory.subscriptions).wants(name, uri);
            (wanted || !told.resources.contains_key(uri)).then_some(())
        });
        if server.open_link().is_some() {
            told.await;
        }
    }

    /// Waits until a server that serves was told the level that is wanted; not long.
    pub(crate) async fn levelled(self: &Arc<Self>, server: &Supervisor, deadline: Now) {
        let keeper = self.keeper(server);
        keeper.poke.notify_one();
        let scope = Scope::Server(Arc::clone(&server.spec().name));
        let told = self.wait(&keeper, deadline, |told| {
            let wanted = lock(&self.memory.levels).of(&scope);
            (wanted.is_none() || told.level == wanted).then_some(())
        });
        if server.open_link().is_some_and(|ready| takes_level(&ready)) {
            told.await;
        }
    }

    async fn wait<T>(
        &self,
        keeper: &Keeper,
        deadline: Now,
        look: impl Fn(&Told) -> Option<T>,
    ) -> Option<T> {
        let mut told = keeper.told.subscribe();
        let until = self.clock.instant(deadline);
        loop {
            let found = look(&told.borrow_and_update());
            if found.is_some() {
                return found;
            }
            match tokio::time::timeout_at(until, told.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return None,
            }
        }
    }

    /// Returns the keeper of a server, which is started if there is none.
    ///
    /// What is wanted is noted before this is called: a keeper leaves only when, under the same
    /// lock, nothing is wanted.
    fn keeper(self: &Arc<Self>, server: &Supervisor) -> Arc<Keeper> {
        let mut keepers = lock(&self.keepers);
        let name = &server.spec().name;
        if let Some(keeper) = keepers.get(name)
            && keeper.server.is(server)
        {
            return Arc::clone(keeper);
        }
        let keeper = Arc::new(Keeper {
            server: server.clone(),
            told: watch::Sender::default(),
            poke: Notify::new(),
        });
        keepers.insert(Arc::clone(name), Arc::clone(&keeper));
        let keeping = Arc::clone(self).keep(Arc::clone(&keeper));
        self.tasks.spawn("keeper", keeping);
        keeper
    }

    async fn keep(self: Arc<Self>, keeper: Arc<Keeper>) {
        let server = keeper.server.clone();
        let mut states = server.state();
        let mut renewals = server.renewals();
        let mut closing = self.closing.subscribe();
        loop {
            drop(states.borrow_and_update());
            let renewed = *renewals.borrow_and_update();
            let step = server.open_link().and_then(|ready| {
                keeper.forget_unless(ready.generation, renewed);
                Some((self.next(&server, &keeper, &ready)?, ready))
            });
            let again = keeper.told.borrow().again;
            let done = async {
                if let Some((step, ready)) = &step {
                    self.take(&server, &keeper, step, ready).await;
                    let now = self.clock.now();
                    keeper
                        .told
                        .send_modify(|told| told.plan(now, keeper.jitter(now)));
                    return;
                }
                tokio::select! {
                    biased;
                    () = self.moment(again) => keeper.told.send_modify(|told| {
                        told.again = None;
                        told.resources.retain(|_, outcome| !is_open(outcome));
                    }),
                    () = keeper.poke.notified() => {}
                    _ = states.changed() => {}
                    _ = renewals.changed() => {}
                }
            };
            if step.is_none() && self.leave(&keeper) {
                return;
            }
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => return,
                () = done => {}
            }
        }
    }

    /// Waits for a moment; for ever where there is none.
    async fn moment(&self, at: Option<Now>) {
        match at {
            Some(at) => tokio::time::sleep_until(self.clock.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// Ends a keeper that is not needed any more.
    fn leave(&self, keeper: &Arc<Keeper>) -> bool {
        let mut keepers = lock(&self.keepers);
        let name = &keeper.server.spec().name;
        let in_place = keepers
            .get(name)
            .is_some_and(|now| Arc::ptr_eq(now, keeper));
        if !in_place {
            return true;
        }
        let level = lock(&self.memory.levels).of(&Scope::Server(Arc::clone(name)));
        let wanted = level.is_some()
            || lock(&self.memory.subscriptions)
                .wanted(name)
                .next()
                .is_some();
        let needed = wanted && !keeper.server.is_retired();
        if !needed {
            keepers.remove(name);
        }
        !needed
    }

    /// Compares what is wanted with what the link was told.
    fn next(&self, server: &Supervisor, keeper: &Keeper, ready: &Ready) -> Option<Step> {
        let name = &server.spec().name;
        let level = lock(&self.memory.levels).of(&Scope::Server(Arc::clone(name)));
        let told = keeper.told.borrow();
        if let Some(level) = level
            && told.level != Some(level)
            && takes_level(ready)
        {
            return Some(Step::Level(level));
        }
        let wanted = lock(&self.memory.subscriptions);
        if ready.link.era() == Era::Modern {
            let same = wanted.wanted(name).count() == told.resources.len()
                && wanted
                    .wanted(name)
                    .all(|uri| told.resources.contains_key(uri));
            return (!same).then(|| Step::Listen(wanted.wanted(name).cloned().collect()));
        }
        let mut known = told.resources.keys();
        if let Some(uri) = known.find(|uri| !wanted.wants(name, uri)) {
            return Some(Step::Unsubscribe(Arc::clone(uri)));
        }
        let mut wanted = wanted.wanted(name);
        let missing = wanted.find(|uri| !told.resources.contains_key(*uri));
        missing.map(|uri| Step::Subscribe(Arc::clone(uri)))
    }

    async fn take(&self, server: &Supervisor, keeper: &Keeper, step: &Step, ready: &Ready) {
        if let Step::Listen(uris) = step {
            return self.listen(server, keeper, uris, ready).await;
        }
        // What the server refused need not be taken back.
        let refused = match step {
            Step::Unsubscribe(uri) => {
                let told = keeper.told.borrow();
                told.resources.get(uri).is_some_and(Result::is_err)
            }
            Step::Subscribe(_) | Step::Level(_) | Step::Listen(_) => false,
        };
        let outcome = match refused {
            true => Ok(()),
            false => {
                let name = &server.spec().name;
                tell(self.clock.as_ref(), name, ready, step.words()).await
            }
        };
        if let Err(error) = &outcome {
            tracing::warn!(server = %server.spec().name, ?step, %error, "was not taken");
        }
        keeper.told.send_modify(|told| match step {
            Step::Subscribe(uri) => {
                told.resources.insert(Arc::clone(uri), outcome);
            }
            Step::Unsubscribe(uri) => {
                told.resources.remove(uri);
            }
            Step::Level(level) => told.level = Some(*level),
            Step::Listen(_) => {}
        });
    }

    /// Says to a server of the modern era of which resources news are wanted.
    async fn listen(&self, server: &Supervisor, keeper: &Keeper, uris: &[Arc<str>], ready: &Ready) {
        let name = &server.spec().name;
        let end = self.clock.now().plus(STEP_TIMEOUT);
        let listened = ready.link.listen_to(uris.to_vec(), self.clock.instant(end));
        let agreed = listened.await.map_err(|error| {
            tracing::warn!(server = %name, %error, "was not listened to");
            let timeout = ResponseWait::for_server(bowline_core::time::millis(STEP_TIMEOUT));
            explain(&error, name, ready.ended(), timeout)
        });
        let outcome = |uri: &Arc<str>| match &agreed {
            Ok(agreed) if agreed.contains(uri) => Ok(()),
            Ok(_) => Err(CallError::Refused {
                server: Arc::clone(name),
                error: Bytes::from_static(NOT_TOLD),
            }),
            Err(error) => Err(error.clone()),
        };
        let resources = uris.iter().map(|uri| (Arc::clone(uri), outcome(uri)));
        let resources = resources.collect();
        keeper.told.send_modify(|told| told.resources = resources);
    }
}

impl Step {
    /// Returns the method of the request, and the name and value of its one parameter.
    fn words(&self) -> (&'static str, &'static str, &str) {
        match self {
            Self::Listen(_) => (method::SUBSCRIPTIONS_LISTEN, "uri", ""),
            Self::Subscribe(uri) => (method::RESOURCES_SUBSCRIBE, "uri", uri),
            Self::Unsubscribe(uri) => (method::RESOURCES_UNSUBSCRIBE, "uri", uri),
            Self::Level(level) => level_words(*level),
        }
    }
}

/// Returns the words that set a level.
pub(crate) const fn level_words(level: Level) -> (&'static str, &'static str, &'static str) {
    (method::LOGGING_SET_LEVEL, "level", level.as_str())
}

/// Tells a server one thing and waits until it has taken it.
pub(crate) async fn tell(
    clock: &dyn Clock,
    server: &Arc<str>,
    ready: &Ready,
    (method, key, value): (&'static str, &str, &str),
) -> Result<(), CallError> {
    let mut params = format!("{{\"{key}\":").into_bytes();
    write_string(&mut params, value);
    params.push(b'}');
    let end = clock.now().plus(STEP_TIMEOUT);
    let request = Request::own(method, Some(params.into()), clock.instant(end));
    let timeout = ResponseWait::for_server(bowline_core::time::millis(STEP_TIMEOUT));
    let answer = ready.link.request(request).await;
    let answer = answer.map_err(|error| explain(&error, server, ready.ended(), timeout))?;
    match answer.body {
        Body::Result => Ok(()),
        Body::Error => Err(CallError::Refused {
            server: Arc::clone(server),
            error: answer.bytes.slice(answer.body_at),
        }),
    }
}

/// Whether a server takes a log level between calls; one of the modern era is told with each.
pub(crate) fn takes_level(ready: &Ready) -> bool {
    let link = &ready.link;
    link.era() == Era::Legacy && declares(&link.server().initialize, "logging")
}
