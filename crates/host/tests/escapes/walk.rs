//! One case after the other: somebody asks for something on some way, and what comes of it is
//! what the oracle says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Kind, Origin, Principal, Reply, Scope, Subject, TaskVerb};
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::error::CallError;
use bowline_core::policy::{Otherwise, Policy};
use bowline_host::Host;
use bowline_host::catalog::ListKind;
use bowline_sim::{Hearer, World, ask, call};
use fastrand::Rng;

use crate::oracle;
use crate::rules::{Written, contexts, endpoint, somebody};
use crate::world::{self, SEEN, SESSION, TARGETS, TASK, Target};

/// How many cases one set of rules lasts, at most.
const RULES_LAST: usize = 24;

/// A way to get at something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// By its visible name, or a URI.
    Live,
    /// What somebody else was answered before.
    Cached,
    /// Of a server that is down.
    Outage,
    /// By a URI in another form, by a template, or by a link that was shown.
    Alias,
    /// At the endpoint of a profile.
    Profile,
    /// At the endpoint of one server.
    Direct,
    /// From a list that was true once.
    Stale,
    /// By the task that it made.
    Task,
}

impl Path {
    pub(crate) const ALL: [Self; 8] = [
        Self::Live,
        Self::Cached,
        Self::Outage,
        Self::Alias,
        Self::Profile,
        Self::Direct,
        Self::Stale,
        Self::Task,
    ];
}

/// One world and the rules in force.
pub(crate) struct Walk {
    seed: u64,
    rng: Rng,
    world: World,
    host: Host,
    rules: Written,
    left: usize,
    seen: BTreeMap<String, usize>,
}

impl Walk {
    pub(crate) async fn begin(seed: u64) -> Self {
        let (world, host) = world::start().await;
        Self {
            seed,
            rng: Rng::with_seed(seed),
            world,
            host,
            rules: Written::default(),
            left: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn end(self) -> BTreeMap<String, usize> {
        assert!(self.host.catalog().offer("down").is_some(), "still listed");
        self.seen
    }

    pub(crate) async fn case(&mut self, nth: usize) {
        if self.left == 0 {
            self.left = self.rng.usize(1..=RULES_LAST);
            self.renew();
        }
        self.left -= 1;
        let who = Arc::new(somebody(&mut self.rng));
        let target = *self.rng.choice(&TARGETS).unwrap();
        let scope = endpoint(&mut self.rng, target.server);
        let place = format!(
            "seed {} case {nth}: {who:?} {scope:?} {target:?}",
            self.seed
        );
        self.looks(&who, &scope, &place).await;
        match self.rng.u8(..16) {
            0..3 => self.stale(&who, &scope, &place).await,
            3..6 => self.follows_up(&who, &place).await,
            6 => self.discovers(&who, &place).await,
            7 if target.kind == Kind::Resource => {
                self.subscribes(&who, &scope, target, &place).await;
            }
            _ => self.asks(&who, &scope, target, &place).await,
        }
    }

    fn renew(&mut self) {
        self.rules = Written::random(&mut self.rng);
        self.host.set_policy(self.rules.policy());
    }

    fn allows(&self, who: &Principal, scope: &Scope, thing: (Kind, &str, &str)) -> bool {
        oracle::allows(&self.rules, who, scope, thing)
    }

    fn count(&mut self, path: Path, allowed: bool) {
        let outcome = if allowed { "allowed" } else { "denied" };
        *self.seen.entry(format!("{path:?} {outcome}")).or_default() += 1;
    }

    /// How many requests have reached any server.
    fn reached(&self) -> usize {
        self.world
            .look(|record| record.executions.len() + record.requests.len())
    }

    /// Returns the entries of a view: by the name shown, the server and its own name.
    fn view(&self, who: &Principal, scope: &Scope, kind: ListKind) -> BTreeSet<Shown> {
        let list = self.host.view(who, scope, kind).result;
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let items = list[kind.member()].as_array().unwrap();
        let names = items.iter().map(|item| item[kind.id()].as_str().unwrap());
        let all = self.catalog(scope, kind);
        let found = names.map(|name| {
            let found = all.iter().find(|shown| shown.name == name);
            found.unwrap_or_else(|| panic!("{name} is in no catalog"))
        });
        found.cloned().collect()
    }

    /// Returns all there is, under the names of an endpoint.
    fn catalog(&self, scope: &Scope, kind: ListKind) -> BTreeSet<Shown> {
        let catalog = self.host.catalog();
        let mut all = BTreeSet::new();
        for offer in catalog.offers() {
            for item in offer.shelf(kind) {
                let own = item.route.name.to_string();
                let name = match scope {
                    Scope::Server(server) if *server != offer.server => continue,
                    Scope::Server(_) => own.clone(),
                    Scope::All | Scope::Profile(_) => item.visible.to_string(),
                };
                let server = offer.server.to_string();
                all.insert(Shown { name, server, own });
            }
        }
        all
    }

    /// A view is all that is there and allowed, and nothing else.
    async fn looks(&mut self, who: &Arc<Principal>, scope: &Scope, place: &str) {
        let kind = *self.rng.choice(&ListKind::ALL).unwrap();
        let seen = self.view(who, scope, kind);
        let allowed = |shown: &&Shown| {
            let thing = (kind.subject(), &*shown.server, &*shown.own);
            self.allows(who, scope, thing)
        };
        let all = self.catalog(scope, kind);
        let due: BTreeSet<_> = all.iter().filter(allowed).cloned().collect();
        assert_eq!(seen, due, "{place} {kind:?} {:#?}", self.rules);
        self.uses(who, scope, kind, &seen, place).await;
    }

    /// What is in a view can be used.
    async fn uses(
        &mut self,
        who: &Arc<Principal>,
        scope: &Scope,
        kind: ListKind,
        seen: &BTreeSet<Shown>,
        place: &str,
    ) {
        let Some(shown) = self.rng.choice(seen) else {
            return;
        };
        let call = self.by(who, scope, named(kind, &shown.name));
        let outcome = self.host.call(call).await;
        judge(
            &outcome,
            true,
            &shown.server,
            &format!("{place} {kind:?} {shown:?}"),
        );
    }

    fn by(&self, who: &Arc<Principal>, scope: &Scope, call: Call) -> Call {
        Call {
            principal: Arc::clone(who),
            scope: scope.clone(),
            caller: Some(Hearer::of(SESSION)),
            ..call
        }
    }

    /// Asks for something by name.
    async fn asks(&mut self, who: &Arc<Principal>, scope: &Scope, target: Target, place: &str) {
        let Target {
            kind, server, name, ..
        } = target;
        let path = path_of(scope, target);
        if path == Path::Cached {
            let fill = world::as_owner("filler", call("b__get", "{}"));
            // Whoever asked before may have been anybody; what is kept is for all.
            let _filled = self.host.call(fill).await;
        }
        let asked = match (scope.is_shared(), target.shared) {
            (false, _) => name.to_owned(),
            (true, Some(shared)) => shared.to_owned(),
            (true, None) => self.visible(kind, server, name),
        };
        let list = match kind {
            Kind::Tool => ListKind::Tools,
            Kind::Prompt => ListKind::Prompts,
            _ if name.contains('{') => ListKind::Templates,
            _ => ListKind::Resources,
        };
        let mut call = named(list, &asked);
        if kind == Kind::Prompt && self.rng.bool() {
            call = ask(Subject::CompletePrompt(asked.as_str().into()), "name");
        }
        let allowed = self.allows(who, scope, (kind, server, name));
        let before = self.reached();
        let outcome = self.host.call(self.by(who, scope, call)).await;
        judge(
            &outcome,
            allowed,
            server,
            &format!("{place} {:#?}", self.rules),
        );
        if !allowed {
            assert_eq!(self.reached(), before, "{place}: it was asked");
        }
        if outcome.is_ok_and(|reply| reply.origin == Origin::Cached) {
            *self.seen.entry("from the cache".to_owned()).or_default() += 1;
        }
        self.count(path, allowed);
    }

    fn visible(&self, kind: Kind, server: &str, name: &str) -> String {
        let list = match kind {
            Kind::Tool => ListKind::Tools,
            _ => ListKind::Prompts,
        };
        let all = self.catalog(&Scope::All, list);
        let mut all = all.iter();
        let found = all.find(|shown| shown.server == server && shown.own == name);
        found.unwrap().name.clone()
    }

    /// Uses what a list showed before the rules changed, or the session was narrowed.
    async fn stale(&mut self, who: &Arc<Principal>, scope: &Scope, place: &str) {
        let kind = *self.rng.choice(&ListKind::ALL).unwrap();
        let before = self.view(who, scope, kind);
        let who = if self.rng.bool() {
            self.renew();
            Arc::clone(who)
        } else {
            Arc::new(who.narrowed(&contexts(&mut self.rng)))
        };
        let Some(shown) = self.rng.choice(&before) else {
            return;
        };
        let thing = (kind.subject(), &*shown.server, &*shown.own);
        let allowed = self.allows(&who, scope, thing);
        let reached = self.reached();
        let call = self.by(&who, scope, named(kind, &shown.name));
        let outcome = self.host.call(call).await;
        let place = format!("{place} stale {shown:?} {who:?} {:#?}", self.rules);
        judge(&outcome, allowed, &shown.server, &place);
        assert!(
            allowed || self.reached() == reached,
            "{place}: it was asked"
        );
        self.count(Path::Stale, allowed);
    }

    /// Asks after a task of a tool that may have been taken away.
    async fn follows_up(&mut self, who: &Arc<Principal>, place: &str) {
        self.host.set_policy(Policy::new(Otherwise::Allow));
        let mut makes = world::as_owner(&who.name, call("a__job", "{}"));
        makes.makes_task = true;
        makes.caller = Some(Hearer::of(SESSION));
        self.host.call(makes).await.unwrap();
        self.host.set_policy(self.rules.policy());
        let scope = endpoint(&mut self.rng, "a");
        let allowed = self.allows(who, &scope, (Kind::Tool, "a", "job"));
        let verbs = [TaskVerb::Get, TaskVerb::Result, TaskVerb::Cancel];
        let subject = Subject::Task {
            id: TASK.into(),
            verb: *self.rng.choice(&verbs).unwrap(),
        };
        let before = self.reached();
        let call = self.by(who, &scope, ask(subject, "taskId"));
        let outcome = self.host.call(call).await;
        let place = format!("{place} task at {scope:?} {:#?}", self.rules);
        judge(&outcome, allowed, "a", &place);
        let listed = self.host.tasks_of(who, &scope).await.unwrap();
        let listed = String::from_utf8_lossy(&listed).contains(TASK);
        assert_eq!(listed, allowed, "{place}");
        assert!(allowed || self.reached() == before, "{place}: it was asked");
        self.count(Path::Task, allowed);
    }

    async fn discovers(&mut self, who: &Arc<Principal>, place: &str) {
        for found in self.host.discover(who, Duration::ZERO).await {
            let tools = found.tools.iter().flatten();
            for tool in tools {
                let thing = (Kind::Tool, &*found.server, &*tool.route.name);
                assert!(self.allows(who, &Scope::All, thing), "{place} {thing:?}");
            }
        }
        let own = self.host.introduction(who, &Scope::All).instructions;
        let own = own.unwrap_or_default();
        for server in ["a", "b", "files", "down"] {
            let said = String::from_utf8_lossy(&own).contains(&format!("{server}: "));
            let sees = ListKind::ALL.into_iter().any(|kind| {
                let seen = self.view(who, &Scope::All, kind);
                seen.iter().any(|shown| shown.server == server)
            });
            assert_eq!(said, sees, "{place} {server} {own:?}");
        }
    }

    async fn subscribes(&mut self, who: &Arc<Principal>, scope: &Scope, at: Target, place: &str) {
        let caller: Arc<dyn CallerEnd> = Hearer::of(SESSION);
        let uri = at.shared.filter(|_| scope.is_shared()).unwrap_or(at.name);
        let allowed = self.allows(who, scope, (at.kind, at.server, at.name));
        let before = self.reached();
        let outcome = self.host.subscribe(who, scope, &caller, uri).await;
        assert!(allowed || outcome.is_err(), "{place} {:#?}", self.rules);
        assert!(allowed || self.reached() == before, "{place}: it was asked");
        if outcome.is_ok() {
            let session = SessionKey(SESSION);
            let ended = self.host.unsubscribe(who, scope, session, uri).await;
            ended.unwrap();
        }
    }
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    name: String,
    server: String,
    own: String,
}

fn path_of(scope: &Scope, target: Target) -> Path {
    let alias = target.shared.is_some_and(|shared| {
        shared.starts_with("bowline:") || target.name == SEEN || target.name == "t:9"
    });
    match scope {
        _ if target.server == "down" => Path::Outage,
        Scope::Profile(_) => Path::Profile,
        Scope::Server(_) => Path::Direct,
        Scope::All if target.name == "get" => Path::Cached,
        Scope::All if alias => Path::Alias,
        Scope::All => Path::Live,
    }
}

/// Asks for an entry of a list by its name. A template is not read, but completed.
fn named(kind: ListKind, name: &str) -> Call {
    match kind {
        ListKind::Tools => call(name, "{}"),
        ListKind::Prompts => ask(Subject::Prompt(name.into()), "name"),
        ListKind::Resources => ask(Subject::Resource(name.into()), "uri"),
        ListKind::Templates => ask(Subject::CompleteResource(name.into()), "uri"),
    }
}

/// What may not be used was refused; what may be was answered, or its server is down.
fn judge(outcome: &Result<Reply, CallError>, allowed: bool, server: &str, place: &str) {
    match outcome {
        Ok(_) => assert!(allowed, "escaped: {place}"),
        Err(CallError::Denied { .. }) => assert!(!allowed, "denied: {place}"),
        Err(error) if server == "down" => {
            let unknown = matches!(error, CallError::UnknownTool { .. });
            assert!(!unknown, "{error} {place}");
        }
        Err(CallError::UnknownResource { .. }) => assert!(!allowed, "unknown: {place}"),
        Err(error) => panic!("{error}: {place}"),
    }
}
