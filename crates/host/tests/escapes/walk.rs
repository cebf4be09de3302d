//! Random accesses on every path, each compared with the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{
    CallReply, CallRequest, CallSubject, EndpointScope, FeatureKind, Principal, ReplyOrigin,
    RequestMessage, TaskOperation,
};
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::error::CallError;
use bowline_core::policy::{DefaultAction, Policy};
use bowline_host::Host;
use bowline_host::catalog::ListKind;
use bowline_testkit::{RecordingClient, SimWorld, subject_call, tool_call};
use fastrand::Rng;

use crate::oracle;
use crate::rules::{RuleSet, random_contexts, random_endpoint, random_principal};
use crate::world::{self, EscapeTarget, SESSION, SHOWN_LINK, TARGETS, TASK};

/// Maximum cases per rule set.
const RULES_LAST: usize = 24;

/// An access path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessPath {
    /// By visible name or URI.
    Live,
    /// A response cached by another principal.
    Cached,
    /// A server that is down.
    Outage,
    /// An alternative URI, a template, or a shown link.
    Alias,
    /// At a profile endpoint.
    Profile,
    /// At a server endpoint.
    Direct,
    /// From an outdated list.
    Stale,
    /// Through a created task.
    Task,
}

impl AccessPath {
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

/// A world with the current rules.
pub(crate) struct Walk {
    seed: u64,
    rng: Rng,
    world: SimWorld,
    host: Host,
    rules: RuleSet,
    left: usize,
    seen: BTreeMap<String, usize>,
}

impl Walk {
    pub(crate) async fn start_walk(seed: u64) -> Self {
        let (world, host) = world::start_world().await;
        Self {
            seed,
            rng: Rng::with_seed(seed),
            world,
            host,
            rules: RuleSet::default(),
            left: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn into_counts(self) -> BTreeMap<String, usize> {
        assert!(self.host.catalog().server("down").is_some(), "still listed");
        self.seen
    }

    pub(crate) async fn run_case(&mut self, nth: usize) {
        if self.left == 0 {
            self.left = self.rng.usize(1..=RULES_LAST);
            self.renew_rules();
        }
        self.left -= 1;
        let who = Arc::new(random_principal(&mut self.rng));
        let target = *self.rng.choice(&TARGETS).unwrap();
        let scope = random_endpoint(&mut self.rng, target.server);
        let place = format!(
            "seed {} case {nth}: {who:?} {scope:?} {target:?}",
            self.seed
        );
        self.check_lists(&who, &scope, &place).await;
        match self.rng.u8(..16) {
            0..3 => self.check_stale_list(&who, &scope, &place).await,
            3..6 => self.check_task(&who, &place).await,
            6 => self.check_discovery(&who, &place).await,
            7 if target.kind == FeatureKind::Resource => {
                self.check_subscription(&who, &scope, target, &place).await;
            }
            _ => self.check_access(&who, &scope, target, &place).await,
        }
    }

    fn renew_rules(&mut self) {
        self.rules = RuleSet::random_rules(&mut self.rng);
        self.host.set_policy(self.rules.to_policy());
    }

    fn oracle_allows(
        &self,
        who: &Principal,
        scope: &EndpointScope,
        kind: FeatureKind,
        server: &str,
        name: &str,
    ) -> bool {
        oracle::allows(&self.rules, who, scope, kind, server, name)
    }

    fn count_case(&mut self, path: AccessPath, allowed: bool) {
        let outcome = if allowed { "allowed" } else { "denied" };
        *self.seen.entry(format!("{path:?} {outcome}")).or_default() += 1;
    }

    /// Number of requests received by all servers.
    fn request_count(&self) -> usize {
        self.world
            .with_record(|record| record.executions.len() + record.requests.len())
    }

    /// Returns the listed items with shown name, server and own name.
    fn listed_items(
        &self,
        who: &Principal,
        scope: &EndpointScope,
        kind: ListKind,
    ) -> BTreeSet<ListedItem> {
        let list = self.host.list_for(who, scope, kind).result;
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let items = list[kind.member()].as_array().unwrap();
        let names = items
            .iter()
            .map(|item| item[kind.id_member()].as_str().unwrap());
        let all = self.all_items(scope, kind);
        let found = names.map(|name| {
            let found = all.iter().find(|shown| shown.name == name);
            found.unwrap_or_else(|| panic!("{name} is in no catalog"))
        });
        found.cloned().collect()
    }

    /// Returns all items under the names of an endpoint.
    fn all_items(&self, scope: &EndpointScope, kind: ListKind) -> BTreeSet<ListedItem> {
        let catalog = self.host.catalog();
        let mut all = BTreeSet::new();
        for offer in catalog.servers() {
            for item in offer.list(kind) {
                let own = item.route.name.to_string();
                let name = match scope {
                    EndpointScope::Server(server) if *server != offer.server => continue,
                    EndpointScope::Server(_) => own.clone(),
                    EndpointScope::All | EndpointScope::Profile(_) => item.visible.to_string(),
                };
                let server = offer.server.to_string();
                all.insert(ListedItem { name, server, own });
            }
        }
        all
    }

    /// A list has exactly the existing, allowed items.
    async fn check_lists(&mut self, who: &Arc<Principal>, scope: &EndpointScope, place: &str) {
        let kind = *self.rng.choice(&ListKind::ALL).unwrap();
        let seen = self.listed_items(who, scope, kind);
        let allowed = |shown: &&ListedItem| {
            self.oracle_allows(who, scope, kind.feature_kind(), &shown.server, &shown.own)
        };
        let all = self.all_items(scope, kind);
        let due: BTreeSet<_> = all.iter().filter(allowed).cloned().collect();
        assert_eq!(seen, due, "{place} {kind:?} {:#?}", self.rules);
        self.check_listed_usable(who, scope, kind, &seen, place)
            .await;
    }

    /// Listed items can be used.
    async fn check_listed_usable(
        &mut self,
        who: &Arc<Principal>,
        scope: &EndpointScope,
        kind: ListKind,
        seen: &BTreeSet<ListedItem>,
        place: &str,
    ) {
        let Some(shown) = self.rng.choice(seen) else {
            return;
        };
        let call = self.as_principal(who, scope, listed_call(kind, &shown.name));
        let outcome = self.host.call(call).await;
        assert_outcome(
            &outcome,
            true,
            &shown.server,
            &format!("{place} {kind:?} {shown:?}"),
        );
    }

    fn as_principal(
        &self,
        who: &Arc<Principal>,
        scope: &EndpointScope,
        call: CallRequest,
    ) -> CallRequest {
        CallRequest {
            principal: Arc::clone(who),
            scope: scope.clone(),
            message: RequestMessage {
                client: Some(RecordingClient::new(SESSION)),
                ..call.message
            },
            ..call
        }
    }

    /// Accesses an item by name.
    async fn check_access(
        &mut self,
        who: &Arc<Principal>,
        scope: &EndpointScope,
        target: EscapeTarget,
        place: &str,
    ) {
        let EscapeTarget {
            kind, server, name, ..
        } = target;
        let path = access_path(scope, target);
        if path == AccessPath::Cached {
            let fill = world::as_owner("filler", tool_call("b__get", "{}"));
            // Any principal may have called before; the cached response is public.
            let _filled = self.host.call(fill).await;
        }
        let asked = match (scope.is_multi_server(), target.shared) {
            (false, _) => name.to_owned(),
            (true, Some(shared)) => shared.to_owned(),
            (true, None) => self.visible_name(kind, server, name),
        };
        let list = match kind {
            FeatureKind::Tool => ListKind::Tools,
            FeatureKind::Prompt => ListKind::Prompts,
            _ if name.contains('{') => ListKind::Templates,
            _ => ListKind::Resources,
        };
        let mut call = listed_call(list, &asked);
        if kind == FeatureKind::Prompt && self.rng.bool() {
            call = subject_call(CallSubject::CompletePrompt(asked.as_str().into()), "name");
        }
        let allowed = self.oracle_allows(who, scope, kind, server, name);
        let before = self.request_count();
        let outcome = self.host.call(self.as_principal(who, scope, call)).await;
        assert_outcome(
            &outcome,
            allowed,
            server,
            &format!("{place} {:#?}", self.rules),
        );
        if !allowed {
            assert_eq!(self.request_count(), before, "{place}: it was asked");
        }
        if outcome.is_ok_and(|reply| reply.origin == ReplyOrigin::Cached) {
            *self.seen.entry("from the cache".to_owned()).or_default() += 1;
        }
        self.count_case(path, allowed);
    }

    fn visible_name(&self, kind: FeatureKind, server: &str, name: &str) -> String {
        let list = match kind {
            FeatureKind::Tool => ListKind::Tools,
            _ => ListKind::Prompts,
        };
        let all = self.all_items(&EndpointScope::All, list);
        let mut all = all.iter();
        let found = all.find(|shown| shown.server == server && shown.own == name);
        found.unwrap().name.clone()
    }

    /// Uses an item from a list made before a change of rules or contexts.
    async fn check_stale_list(&mut self, who: &Arc<Principal>, scope: &EndpointScope, place: &str) {
        let kind = *self.rng.choice(&ListKind::ALL).unwrap();
        let before = self.listed_items(who, scope, kind);
        let who = if self.rng.bool() {
            self.renew_rules();
            Arc::clone(who)
        } else {
            Arc::new(who.with_contexts(&random_contexts(&mut self.rng)))
        };
        let Some(shown) = self.rng.choice(&before) else {
            return;
        };
        let allowed =
            self.oracle_allows(&who, scope, kind.feature_kind(), &shown.server, &shown.own);
        let reached = self.request_count();
        let call = self.as_principal(&who, scope, listed_call(kind, &shown.name));
        let outcome = self.host.call(call).await;
        let place = format!("{place} stale {shown:?} {who:?} {:#?}", self.rules);
        assert_outcome(&outcome, allowed, &shown.server, &place);
        assert!(
            allowed || self.request_count() == reached,
            "{place}: it was asked"
        );
        self.count_case(AccessPath::Stale, allowed);
    }

    /// Requests a task whose tool may have been revoked.
    async fn check_task(&mut self, who: &Arc<Principal>, place: &str) {
        self.host.set_policy(Policy::new(DefaultAction::Allow));
        let mut makes = world::as_owner(&who.name, tool_call("a__job", "{}"));
        makes.wants_task = true;
        makes.message.client = Some(RecordingClient::new(SESSION));
        self.host.call(makes).await.unwrap();
        self.host.set_policy(self.rules.to_policy());
        let scope = random_endpoint(&mut self.rng, "a");
        let allowed = self.oracle_allows(who, &scope, FeatureKind::Tool, "a", "job");
        let verbs = [
            TaskOperation::Get,
            TaskOperation::Result,
            TaskOperation::Cancel,
        ];
        let subject = CallSubject::Task {
            id: TASK.into(),
            operation: *self.rng.choice(&verbs).unwrap(),
        };
        let before = self.request_count();
        let call = self.as_principal(who, &scope, subject_call(subject, "taskId"));
        let outcome = self.host.call(call).await;
        let place = format!("{place} task at {scope:?} {:#?}", self.rules);
        assert_outcome(&outcome, allowed, "a", &place);
        let listed = self.host.list_tasks(who, &scope).await.unwrap();
        let listed = String::from_utf8_lossy(&listed).contains(TASK);
        assert_eq!(listed, allowed, "{place}");
        assert!(
            allowed || self.request_count() == before,
            "{place}: it was asked"
        );
        self.count_case(AccessPath::Task, allowed);
    }

    async fn check_discovery(&mut self, who: &Arc<Principal>, place: &str) {
        for found in self.host.discover_tools(who, Duration::ZERO).await {
            let tools = found.tools.iter().flatten();
            for tool in tools {
                let (scope, kind) = (EndpointScope::All, FeatureKind::Tool);
                let (server, name) = (&found.server, &tool.route.name);
                assert!(
                    self.oracle_allows(who, &scope, kind, server, name),
                    "{place} {server}.{name}"
                );
            }
        }
        let own = self
            .host
            .initialize_info(who, &EndpointScope::All)
            .instructions;
        let own = own.unwrap_or_default();
        for server in ["a", "b", "files", "down"] {
            let said = String::from_utf8_lossy(&own).contains(&format!("{server}: "));
            let sees = ListKind::ALL.into_iter().any(|kind| {
                let seen = self.listed_items(who, &EndpointScope::All, kind);
                seen.iter().any(|shown| shown.server == server)
            });
            assert_eq!(said, sees, "{place} {server} {own:?}");
        }
    }

    async fn check_subscription(
        &mut self,
        who: &Arc<Principal>,
        scope: &EndpointScope,
        at: EscapeTarget,
        place: &str,
    ) {
        let caller: Arc<dyn ClientHandle> = RecordingClient::new(SESSION);
        let uri = at
            .shared
            .filter(|_| scope.is_multi_server())
            .unwrap_or(at.name);
        let allowed = self.oracle_allows(who, scope, at.kind, at.server, at.name);
        let before = self.request_count();
        let outcome = self.host.subscribe(who, scope, &caller, uri).await;
        assert!(allowed || outcome.is_err(), "{place} {:#?}", self.rules);
        assert!(
            allowed || self.request_count() == before,
            "{place}: it was asked"
        );
        if outcome.is_ok() {
            let session = SessionKey(SESSION);
            let ended = self.host.unsubscribe(who, scope, session, uri).await;
            ended.unwrap();
        }
    }
}

/// A listed item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListedItem {
    name: String,
    server: String,
    own: String,
}

fn access_path(scope: &EndpointScope, target: EscapeTarget) -> AccessPath {
    let alias = target.shared.is_some_and(|shared| {
        shared.starts_with("bowline:") || target.name == SHOWN_LINK || target.name == "t:9"
    });
    match scope {
        _ if target.server == "down" => AccessPath::Outage,
        EndpointScope::Profile(_) => AccessPath::Profile,
        EndpointScope::Server(_) => AccessPath::Direct,
        EndpointScope::All if target.name == "get" => AccessPath::Cached,
        EndpointScope::All if alias => AccessPath::Alias,
        EndpointScope::All => AccessPath::Live,
    }
}

/// Requests a listed item by name. A template is completed instead of read.
fn listed_call(kind: ListKind, name: &str) -> CallRequest {
    match kind {
        ListKind::Tools => tool_call(name, "{}"),
        ListKind::Prompts => subject_call(CallSubject::Prompt(name.into()), "name"),
        ListKind::Resources => subject_call(CallSubject::Resource(name.into()), "uri"),
        ListKind::Templates => subject_call(CallSubject::CompleteResource(name.into()), "uri"),
    }
}

/// A denied access failed; an allowed access got a response, or the server is down.
fn assert_outcome(
    outcome: &Result<CallReply, CallError>,
    allowed: bool,
    server: &str,
    place: &str,
) {
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
