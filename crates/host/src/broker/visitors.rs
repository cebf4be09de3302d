//! Sessions of a hub's callers as sessions of this gateway: isolated, told and forgotten like
//! those of its own clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::era::Era;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_wire::broker::{Context, Frame, SessionEvent};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::Line;
use crate::audience::VISITORS_FROM;
use crate::host::Host;
use crate::ports::Audience;

/// Visitors that are remembered; one more takes the place of the one that was quiet for longest.
const VISITORS_MAX: usize = 4_096;

/// A visitor that asked for nothing for so long is forgotten, if its hub did not say before that it
/// is gone.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// A server, and a session of its hub that asks for it; the hub itself where that is absent.
type Name = (Arc<str>, Option<Arc<str>>);

/// The sessions of a hub that asked for servers of this gateway.
#[derive(Debug)]
pub struct Visitors {
    host: Host,
    /// The connection over which the hub asked last.
    line: ArcSwapOption<Line>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    made: u64,
    keys: HashMap<Name, SessionKey, RandomState>,
    visits: HashMap<SessionKey, Visit, RandomState>,
}

#[derive(Debug)]
struct Visit {
    name: Name,
    /// When it asked last.
    used: Now,
    /// Requests of it that are under way.
    requests: usize,
    /// The log level that it was noted with.
    level: Option<Level>,
}

impl Visitors {
    /// Returns what knows nobody yet, and has `host` tell it what its visitors are to hear.
    #[must_use]
    pub fn of(host: &Host) -> Arc<Self> {
        let visitors = Arc::new(Self {
            host: host.clone(),
            line: ArcSwapOption::empty(),
            table: Mutex::default(),
        });
        let audience: Arc<dyn Audience> = Arc::clone(&visitors) as _;
        host.admit_visitors(&audience);
        visitors
    }

    /// Notes the connection over which the hub asks. Over a new one it says again what it wants
    /// to hear of.
    pub(super) fn come_over(&self, line: &Line) {
        let generation = line.generation();
        let is_known = |known: &Line| known.generation() == generation;
        if self.line.load().as_deref().is_some_and(is_known) {
            return;
        }
        self.line.store(Some(Arc::new(line.clone())));
        let standing: Vec<_> = {
            let mut table = lock(&self.table);
            let own = |name: &Name, _: &mut SessionKey| name.1.is_none();
            let standing: Vec<_> = table.keys.extract_if(own).map(|(_, key)| key).collect();
            for key in &standing {
                table.visits.remove(key);
            }
            standing
        };
        for key in standing {
            self.host.session_ended(key);
        }
    }

    /// Lets a session of the hub in, for as long as what is returned lives.
    pub(super) fn enter(self: &Arc<Self>, server: &Arc<str>, session: Option<&Arc<str>>) -> Stay {
        let name = (Arc::clone(server), session.cloned());
        let now = self.host.clock().now();
        let mut table = lock(&self.table);
        let (key, gone) = match table.keys.get(&name) {
            Some(key) => (*key, Vec::new()),
            None => table.admit(name, now),
        };
        if let Some(visit) = table.visits.get_mut(&key) {
            visit.requests += 1;
            visit.used = now;
        }
        drop(table);
        for key in gone {
            self.host.session_ended(key);
        }
        Stay {
            visitors: Arc::clone(self),
            key,
        }
    }

    /// Takes what became of a session of the hub.
    pub(super) fn became(&self, server: &Arc<str>, session: &Arc<str>, event: SessionEvent) {
        let name = (Arc::clone(server), Some(Arc::clone(session)));
        let mut table = lock(&self.table);
        match event {
            SessionEvent::RootsChanged => {
                let key = table.keys.get(&name).copied();
                drop(table);
                if let Some(key) = key {
                    self.host.roots_changed(key);
                }
            }
            SessionEvent::Ended => {
                let key = table.keys.remove(&name);
                key.map(|key| table.visits.remove(&key));
                drop(table);
                if let Some(key) = key {
                    self.host.session_ended(key);
                }
            }
        }
    }
}

impl Table {
    /// Enters a visitor, and returns those who had to go.
    fn admit(&mut self, name: Name, now: Now) -> (SessionKey, Vec<SessionKey>) {
        let long_ago = |visit: &Visit| visit.used.plus(IDLE_MAX) <= now;
        let is_idle = |visit: &Visit| visit.requests == 0 && visit.name.1.is_some();
        let idle = self.visits.iter().filter(|(_, visit)| is_idle(visit));
        let mut gone: Vec<_> = idle
            .clone()
            .filter(|(_, visit)| long_ago(visit))
            .map(|(key, _)| *key)
            .collect();
        if gone.is_empty() && self.visits.len() >= VISITORS_MAX {
            let quietest = idle.min_by_key(|(_, visit)| visit.used);
            gone.extend(quietest.map(|(key, _)| *key));
        }
        for key in &gone {
            if let Some(visit) = self.visits.remove(key) {
                self.keys.remove(&visit.name);
            }
        }
        self.made += 1;
        let key = SessionKey(VISITORS_FROM + self.made);
        self.keys.insert(name.clone(), key);
        let visit = Visit {
            name,
            used: now,
            requests: 0,
            level: None,
        };
        self.visits.insert(key, visit);
        (key, gone)
    }
}

impl Audience for Visitors {
    fn tell(&self, session: SessionKey, notification: Bytes) -> bool {
        let visit = lock(&self.table)
            .visits
            .get(&session)
            .map(|visit| visit.name.clone());
        let line = self.line.load();
        let (Some((server, session)), Some(line)) = (visit, line.as_deref()) else {
            return false;
        };
        let told = Frame::Told {
            server,
            session,
            notification,
        };
        line.try_send(&told).is_ok()
    }
}

/// A session of the hub during one request.
#[derive(Debug)]
pub(super) struct Stay {
    visitors: Arc<Visitors>,
    key: SessionKey,
}

impl Stay {
    pub(super) const fn key(&self) -> SessionKey {
        self.key
    }

    /// Whether the session is to be noted with another log level than before.
    pub(super) fn is_news(&self, level: Option<Level>) -> bool {
        let mut table = lock(&self.visitors.table);
        let visit = table.visits.get_mut(&self.key);
        visit.is_some_and(|visit| std::mem::replace(&mut visit.level, level) != level)
    }

    /// Returns the end of the caller of one request: who hears and answers is `sink`.
    pub(super) fn end(&self, sink: &Arc<dyn CallerEnd>, context: &Context) -> Arc<dyn CallerEnd> {
        Arc::new(Visitor {
            sink: Some(Arc::clone(sink)),
            visitors: Arc::clone(&self.visitors),
            key: self.key,
            abilities: context.abilities,
            level: context.level,
            answers_later: context.era == Era::Modern,
        })
    }

    /// Returns the end of the session between requests.
    pub(super) fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Visitor {
            sink: None,
            visitors: Arc::clone(&self.visitors),
            key: self.key,
            abilities: Abilities::default(),
            level: None,
            answers_later: false,
        })
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let now = self.visitors.host.clock().now();
        let mut table = lock(&self.visitors.table);
        if let Some(visit) = table.visits.get_mut(&self.key) {
            visit.requests = visit.requests.saturating_sub(1);
            visit.used = now;
        }
    }
}

/// The end of a caller at the hub, during a request or between requests.
#[derive(Debug)]
struct Visitor {
    /// Absent between requests: then it is told over the hub's connection, and cannot be asked.
    sink: Option<Arc<dyn CallerEnd>>,
    visitors: Arc<Visitors>,
    key: SessionKey,
    abilities: Abilities,
    level: Option<Level>,
    /// Whether it answers questions in later requests.
    answers_later: bool,
}

impl CallerEnd for Visitor {
    fn session(&self) -> SessionKey {
        self.key
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn level(&self) -> Option<Level> {
        self.level
    }

    fn push(&self, notification: Bytes) {
        match &self.sink {
            Some(sink) => sink.push(notification),
            None => drop(self.visitors.tell(self.key, notification)),
        }
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.sink.as_ref()?.ask(question)
    }

    fn lacks(&self, ability: Ability) {
        if let Some(sink) = &self.sink {
            sink.lacks(ability);
        }
    }

    fn answers_later(&self) -> bool {
        self.answers_later
    }

    fn withdraw(&self, question: QuestionId) {
        if let Some(sink) = &self.sink {
            sink.withdraw(question);
        }
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self {
            sink: None,
            visitors: Arc::clone(&self.visitors),
            key: self.key,
            abilities: self.abilities,
            level: self.level,
            answers_later: false,
        })
    }
}
